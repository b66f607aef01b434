//! Over a link with a rate, a round trip of 20 ms and a queue nothing is displaced, and nothing is lost inside weft.

use std::net::SocketAddr;
use std::time::Duration;

use weft_lab::emulator::{LinkSpec, Queue};
use weft_lab::numbered::NumberedOptions;
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};

use crate::accounts::{Bed, Setting};
use crate::content::{finish_in_order, start_numbered};
use crate::support::{End, Family, alone};

/// Several bandwidth-delay products, so that the stream leaves the slow start.
const STREAM_BYTES: u64 = 8 * 1024 * 1024 + 7;

#[test]
fn a_round_trip_displaces_nothing_without_threads_of_the_tun() {
    a_round_trip_displaces_nothing(
        "a_round_trip_displaces_nothing_without_threads_of_the_tun",
        Setting { outer: Family::V4, ..Setting::inline(1) },
    );
}

#[test]
fn a_round_trip_displaces_nothing_through_two_queues() {
    a_round_trip_displaces_nothing(
        "a_round_trip_displaces_nothing_through_two_queues",
        Setting { outer: Family::V6, ..Setting::threads(2) },
    );
}

#[test]
fn a_round_trip_displaces_nothing_through_four_queues_without_threads_of_the_tun() {
    a_round_trip_displaces_nothing(
        "a_round_trip_displaces_nothing_through_four_queues_without_threads_of_the_tun",
        Setting { outer: Family::V4, ..Setting::inline(4) },
    );
}

fn a_round_trip_displaces_nothing(test: &str, setting: Setting) {
    let _alone = alone();
    let link = LinkSpec {
        rate: Some(200_000_000),
        delay: Duration::from_millis(10),
        queue: Queue::BandwidthDelayProduct,
        ..LinkSpec::default()
    };
    let Some(bed) = Bed::over(test, setting, &link) else { return };
    flows_keep_their_order(&bed, &[(End::A, End::B)]);
    flows_keep_their_order(&bed, &[(End::A, End::B), (End::B, End::A)]);
    a_stream_is_not_reordered(&bed);
    bed.assert_balanced();
    bed.stop();
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
    let address = SocketAddr::new(End::B.inner(Family::V4), 0);
    let receiver = bed.ends.b.run(|| TcpReceiver::listen(address)).unwrap();
    let amount = Amount::Count(STREAM_BYTES);
    let senders = TcpSenders::start(&bed.ends.a, receiver.local_addr(), 1, amount, 7).unwrap();
    for flow in senders.finish() {
        let sent = (&flow.error, flow.bytes, flow.confirmed);
        assert_eq!(sent, (&None, STREAM_BYTES, STREAM_BYTES), "{:?}", bed.setting);
    }
    let received = receiver.finish();
    assert_eq!(received.len(), 1);
    for flow in received {
        let whole = (&flow.error, flow.first_mismatch, flow.bytes) == (&None, None, STREAM_BYTES);
        assert!(whole, "{:?}: {flow:?}", bed.setting);
    }
    for end in [End::A, End::B] {
        let reading = bed.read(end);
        for counter in ["TcpExtTCPSACKReorder", "TcpExtTCPTSReorder"] {
            assert_eq!(reading.kernel.protocol(counter), 0, "{counter} of {end:?}, {:?}", bed.setting);
        }
    }
}
