//! Every byte arrives, in order and unchanged, whatever the MTU, the families, the threads and the offloads.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use weft_lab::numbered::{Numbered, NumberedOptions, NumberedReport, Tally};
use weft_lab::traffic::Amount;
use weft_lab::{Namespace, PATIENCE, here};

use crate::accounts::{Bed, Reading, Setting, with_each};
use crate::support::{End, Family, alone};

/// Flows of each pair of a direction and an inner family: 64 in all.
const FLOWS: u32 = 16;
/// Bytes of each of them.
const BYTES: u64 = 320 * 1024 + 7;

/// Every MTU with every number of queues; each with the outer family that the number of threads before it did
/// not have, so that both families meet every MTU and every number of threads.
#[test]
fn everything_arrives_at_every_mtu_through_every_number_of_queues() {
    let _alone = alone();
    let settings = [
        Setting::inline(1),
        Setting::threads(1),
        Setting::threads(2),
        Setting::threads(4),
        Setting::inline(4),
    ];
    for setting in settings {
        let turn = usize::from(matches!(setting.tun_threads, 1 | 4));
        let with_mtu = |(place, mtu): (usize, u16)| {
            let outer = if (place + turn).is_multiple_of(2) { Family::V4 } else { Family::V6 };
            Setting { mtu, outer, ..setting }
        };
        with_each([1280, 1420, 8920].into_iter().enumerate().map(with_mtu), everything_arrives);
    }
}

#[test]
fn everything_arrives_without_offloads() {
    let _alone = alone();
    let settings = [
        (Setting::inline(1), 1420, Family::V6),
        (Setting::inline(4), 8920, Family::V4),
        (Setting::threads(1), 1280, Family::V4),
        (Setting::threads(2), 1420, Family::V4),
        (Setting::threads(4), 8920, Family::V6),
    ];
    let without = settings.map(|(setting, mtu, outer)| Setting { mtu, outer, offload: false, ..setting });
    with_each(without, everything_arrives);
}

fn everything_arrives(setting: Setting) {
    let Some(bed) = Bed::new(setting) else { return };
    if setting.offload && !weft_tun::SUPER_PACKETS {
        here::not_run("with super-packets: a TUN takes none in this build");
    }
    streams_arrive(&bed);
    datagrams_arrive(&bed);
    let [a, b] = bed.assert_balanced();
    for end in [&a, &b] {
        let tun = &end.weft.tun;
        let super_packets = setting.offload && weft_tun::SUPER_PACKETS;
        assert_eq!(tun.segments_read > tun.packets_read, super_packets, "{setting:?}: {tun:?}");
        let is_joined = tun.segments_written > tun.packets_written;
        assert_eq!(is_joined, super_packets, "{setting:?}: {tun:?}");
        let batches = end.weft.udp.datagrams_sent > end.weft.udp.batches_sent;
        assert!(batches || !setting.offload, "{setting:?}: {:?}", end.weft.udp);
    }
    bed.stop();
}

/// All four at once: both directions, both families.
pub(crate) fn streams_arrive(bed: &Bed) {
    let start = |from, family| bed.ends.transfer(from, family, FLOWS, Amount::Count(BYTES));
    let both = |from| [start(from, Family::V4), start(from, Family::V6)];
    for transfer in [both(End::A), both(End::B)].into_iter().flatten() {
        assert_eq!(transfer.finish(), u64::from(FLOWS) * BYTES, "{:?}", bed.setting);
    }
}

/// Datagrams as long as the MTU lets them be, in super-packets one way and singly the other.
pub(crate) fn datagrams_arrive(bed: &Bed) {
    let start = |from: End, to: End, family: Family, segmentation_offload| {
        let headers = if family == Family::V4 { 28 } else { 48 };
        let options = NumberedOptions {
            flows: 16,
            datagram_bytes: usize::from(bed.setting.mtu) - headers,
            datagrams_per_second: 5_000,
            burst: 8,
            segmentation_offload,
            amount: Amount::Count(1_600),
            ..NumberedOptions::default()
        };
        start_numbered(bed, from, to, family, options)
    };
    let running = [start(End::A, End::B, Family::V4, true), start(End::B, End::A, Family::V6, false)];
    for numbered in running {
        finish_in_order(bed, numbered);
    }
}

/// Starts numbered flows through the tunnel.
pub(crate) fn start_numbered(
    bed: &Bed,
    from: End,
    to: End,
    family: Family,
    options: NumberedOptions,
) -> Numbered {
    let end = |end: End| -> (&Namespace, IpAddr) { (bed.ends.namespace(end), end.inner(family)) };
    let ((from, source), (to, destination)) = (end(from), end(to));
    Numbered::start(from, source, to, destination, options).unwrap()
}

/// Waits until everything has arrived, and asserts that nothing was displaced, repeated or changed, and that
/// what is missing was lost outside of weft.
#[track_caller]
pub(crate) fn finish_in_order(bed: &Bed, numbered: Numbered) -> NumberedReport {
    let read = || [bed.read(End::A), bed.read(End::B)];
    let lost_in = |readings: &[Reading]| readings.iter().map(Reading::lost_outside).sum::<u64>();
    let start = Instant::now();
    while !numbered.is_sent() || numbered.progress().0 > numbered.progress().1 {
        let is_late = numbered.is_sent() && start.elapsed() > PATIENCE;
        // What was lost outside is not waited for; what goes on arriving then is waited for by the flows
        // themselves.
        if is_late || (numbered.is_sent() && lost_in(&read()) > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let report = numbered.finish();
    let readings = read();
    let lost_outside = lost_in(&readings);
    for tally in [report.forward, report.replies] {
        let Tally { out_of_order, duplicates, corrupt, lost, .. } = tally;
        assert_eq!((out_of_order, duplicates, corrupt), (0, 0, 0), "{:?}: {report:?}", bed.setting);
        assert!(
            lost <= lost_outside,
            "{:?}: outside of weft at most {lost_outside} were lost: {report:?}\n{readings:#?}",
            bed.setting
        );
    }
    assert!(report.forward.received > 0, "{report:?}");
    report
}
