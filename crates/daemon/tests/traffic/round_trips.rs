//! Over a link with a rate, a round trip of 20 ms and a queue nothing is displaced, and nothing is lost
//! inside weft.

use std::time::Duration;

use weft_lab::emulator::{LinkSpec, Queue};
use weft_lab::numbered::NumberedOptions;
use weft_lab::traffic::Amount;

use crate::accounts::{Bed, Setting};
use crate::content::{finish_in_order, start_numbered};
use crate::support::{End, Family, undisturbed};

/// Several bandwidth-delay products, so that the stream leaves the slow start.
const STREAM_BYTES: u64 = 8 * 1024 * 1024 + 7;

#[test]
fn a_round_trip_displaces_nothing_with_and_without_threads_of_the_tun() {
    let _undisturbed = undisturbed();
    let link = LinkSpec {
        rate: Some(200_000_000),
        delay: Duration::from_millis(10),
        queue: Queue::BandwidthDelayProduct,
        ..LinkSpec::default()
    };
    for (setting, outer) in [
        (Setting::inline(1), Family::V4),
        (Setting::threads(2), Family::V6),
        (Setting::inline(4), Family::V4),
    ] {
        let Some(bed) = Bed::over(Setting { outer, ..setting }, &link) else { return };
        flows_keep_their_order(&bed, &[(End::A, End::B)]);
        flows_keep_their_order(&bed, &[(End::A, End::B), (End::B, End::A)]);
        a_stream_is_not_reordered(&bed);
        bed.assert_balanced();
        bed.stop();
    }
}

/// Numbered flows at about a third of the link's rate, each of these ways at once.
fn flows_keep_their_order(bed: &Bed, ways: &[(End, End)]) {
    let options = NumberedOptions {
        flows: 64,
        datagram_bytes: 1_000,
        datagrams_per_second: 8_000,
        burst: 8,
        segmentation_offload: true,
        amount: Amount::Count(6_400),
        ..NumberedOptions::default()
    };
    let start = |&(from, to)| start_numbered(bed, from, to, Family::V4, options);
    let running: Vec<_> = ways.iter().map(start).collect();
    for numbered in running {
        finish_in_order(bed, numbered);
    }
}

/// A stream that fills the link and its queue: segments may be lost there, but none overtakes another.
fn a_stream_is_not_reordered(bed: &Bed) {
    let transfer = bed.ends.transfer(End::A, Family::V4, 1, Amount::Count(STREAM_BYTES));
    assert_eq!(transfer.finish(), STREAM_BYTES, "{:?}", bed.setting);
    for end in [End::A, End::B] {
        let reading = bed.read(end);
        for counter in ["TcpExtTCPSACKReorder", "TcpExtTCPTSReorder"] {
            assert_eq!(reading.kernel.protocol(counter), 0, "{counter} of {end:?}, {:?}", bed.setting);
        }
    }
}
