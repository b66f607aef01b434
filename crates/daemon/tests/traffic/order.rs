//! The datagrams of a flow arrive in the order in which they were sent, through four queues and beside a bulk
//! of TCP, whatever the kernel remembers of the queue of a flow, with TUN threads and without.

use std::net::SocketAddr;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use weft_lab::numbered::{FlowCheck, NumberedOptions, NumberedReport, Replies};
use weft_lab::traffic::Amount;
use weft_lab::{PATIENCE, Transfer, until};

use crate::accounts::{Bed, Setting};
use crate::content::{finish_in_order, start_numbered};
use crate::support::{End, Family, alone};

/// Four queues, with and without threads.
fn four_queues() -> [Setting; 2] {
    [Setting::threads(4), Setting::inline(4)]
}

/// Streams that keep every queue busy, both ways, until they are stopped.
struct BulkTransfers([Transfer; 2]);

impl BulkTransfers {
    fn start(bed: &Bed) -> Self {
        let start = |from| bed.ends.transfer(from, Family::V4, 4, Amount::Count(u64::MAX));
        let transfers = [End::A, End::B].map(start);
        transfers.iter().for_each(Transfer::is_connected);
        Self(transfers)
    }

    fn finish(self) {
        self.0.iter().for_each(Transfer::stop);
        for transfer in self.0 {
            transfer.finish();
        }
    }
}

/// Sends numbered flows beside a bulk, and asserts that their order is kept.
fn keeps_the_order(family: Family, options: NumberedOptions) -> Vec<NumberedReport> {
    keeps_the_order_for(family, |_| options, u64::MAX)
}

/// The same with options that know when the sending begins. It ends when this many have arrived, too.
fn keeps_the_order_for(
    family: Family,
    options: impl Fn(Instant) -> NumberedOptions,
    enough: u64,
) -> Vec<NumberedReport> {
    let _alone = alone();
    let mut reports = Vec::new();
    for setting in four_queues() {
        let Some(bed) = Bed::new(setting) else { break };
        let bulk = BulkTransfers::start(&bed);
        let numbered = start_numbered(&bed, End::A, End::B, family, options(Instant::now()));
        while !numbered.is_sent() {
            if numbered.progress().1 >= enough {
                numbered.stop();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Without it the queues run empty, and what is on its way arrives.
        bulk.finish();
        reports.push(finish_in_order(&bed, numbered));
        let [a, _] = bed.assert_balanced();
        assert_eq!(a.weft.tun_queues.len(), bed.setting.queues());
        assert!(a.weft.tun_queues.iter().all(|queue| queue.packets_read > 0), "{setting:?}: {a:?}");
        bed.stop();
    }
    reports
}

#[test]
fn ten_thousand_flows_keep_their_order() {
    // The kernel remembers 4,096 flows.
    let options = NumberedOptions {
        flows: 10_000,
        datagram_bytes: 200,
        datagrams_per_second: 20_000,
        burst: 4,
        amount: Amount::Count(120_000),
        replies: Replies::EveryPackets(5),
        ..NumberedOptions::default()
    };
    keeps_the_order(Family::V4, options);
}

#[test]
fn flows_that_are_never_answered_keep_their_order() {
    let options = NumberedOptions {
        flows: 500,
        datagram_bytes: 700,
        datagrams_per_second: 15_000,
        burst: 8,
        amount: Amount::Count(30_000),
        replies: Replies::Never,
        ..NumberedOptions::default()
    };
    keeps_the_order(Family::V6, options);
}

#[test]
fn flows_that_are_answered_every_four_seconds_keep_their_order() {
    // The kernel forgets after 3 s on which queue a flow was written.
    let options = |begin| NumberedOptions {
        flows: 200,
        datagram_bytes: 500,
        datagrams_per_second: 8_000,
        burst: 4,
        amount: Amount::Until(begin + Duration::from_secs(10)),
        replies: Replies::Every(Duration::from_millis(4_200)),
        ..NumberedOptions::default()
    };
    let reports = keeps_the_order_for(Family::V4, options, u64::MAX);
    assert!(reports.iter().all(|report| report.replies.received > 200), "{reports:?}");
}

#[test]
fn a_first_answer_in_mid_stream_keeps_the_order() {
    let options = NumberedOptions {
        flows: 300,
        datagram_bytes: 300,
        datagrams_per_second: 15_000,
        burst: 3,
        amount: Amount::Count(3_600_000),
        replies: Replies::From(60),
        ..NumberedOptions::default()
    };
    // A busy machine may lose more than half of what is sent.
    let reports = keeps_the_order_for(Family::V4, |_| options, 36_000);
    assert!(reports.iter().all(|report| report.replies.received > 0), "{reports:?}");
}

#[test]
fn flows_that_the_other_end_began_keep_their_order_when_the_kernel_forgets_them() {
    let _alone = alone();
    for setting in four_queues() {
        let Some(bed) = Bed::new(setting) else { return };
        flows_that_the_other_end_began_keep_their_order(bed);
    }
}

fn flows_that_the_other_end_began_keep_their_order(bed: Bed) {
    const FLOWS: usize = 96;
    let bind = |end: End| -> Vec<UdpSocket> {
        let address = SocketAddr::new(end.inner(Family::V4), 0);
        bed.ends.namespace(end).run(|| (0..FLOWS).map(|_| UdpSocket::bind(address).unwrap()).collect())
    };
    let (asking, answering) = (bind(End::A), bind(End::B));
    for (asking, answering) in asking.iter().zip(&answering) {
        asking.connect(answering.local_addr().unwrap()).unwrap();
        answering.connect(asking.local_addr().unwrap()).unwrap();
        answering.set_read_timeout(Some(PATIENCE)).unwrap();
        // One datagram of A's is the only one that B's daemon ever writes to its TUN.
        asking.send(b"begin").unwrap();
        assert_eq!(answering.recv(&mut [0; 16]).unwrap(), 5);
        asking.set_nonblocking(true).unwrap();
    }
    let bulk = BulkTransfers::start(&bed);
    // More than weft takes, in a queue or two: what moves to another one would overtake much.
    let flood = NumberedOptions {
        flows: 2,
        datagram_bytes: 1_000,
        datagrams_per_second: 300_000,
        burst: 40,
        amount: Amount::Count(u64::MAX),
        ..NumberedOptions::default()
    };
    let flood = start_numbered(&bed, End::B, End::A, Family::V4, flood);
    let mut checks = vec![FlowCheck::default(); FLOWS];
    let drain = |checks: &mut Vec<FlowCheck>| {
        let mut number = [0; 16];
        for (check, asking) in checks.iter_mut().zip(&asking) {
            while let Ok(len) = asking.recv(&mut number) {
                assert_eq!(len, 8);
                check.see(u64::from_be_bytes(*number.first_chunk().unwrap()));
            }
        }
    };
    // Long enough that the kernel forgets every flow while it goes on, and moves it to the queue that its
    // hash chooses.
    let end = Instant::now() + Duration::from_secs(7);
    let mut sent = 0u64;
    while Instant::now() < end {
        for answering in &answering {
            answering.send(&sent.to_be_bytes()).unwrap();
        }
        sent += 1;
        drain(&mut checks);
    }
    flood.stop();
    let flood = finish_in_order(&bed, flood).forward;
    assert!(flood.lost > 0, "its queue was never full: {flood:?}");
    until("the last datagram of every flow", || {
        for answering in &answering {
            answering.send(&sent.to_be_bytes()).unwrap();
        }
        sent += 1;
        let before: u64 = checks.iter().map(FlowCheck::received).sum();
        drain(&mut checks);
        let after: u64 = checks.iter().map(FlowCheck::received).sum();
        after > before
    });
    bulk.finish();
    let lost_outside = bed.read(End::A).lost_outside() + bed.read(End::B).lost_outside();
    for check in &checks {
        assert_eq!((check.out_of_order(), check.duplicates()), (0, 0), "{check:?}");
        assert!(check.received() > 0 && check.gaps() <= lost_outside, "{check:?}");
    }
    bed.assert_balanced();
    bed.stop();
}
