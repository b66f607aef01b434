//! What stands still for a while goes on where it was, and nothing is lost inside of weft meanwhile.

use std::net::SocketAddr;

use nix::sys::signal::Signal;
use weft_lab::counters::Counters;
use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::{Amount, TcpReceiver, TcpSenders};
use weft_lab::{link, wait_until};

use crate::accounts::{Bed, Reading, Setting};
use crate::content::{finish_in_order, start_numbered};
use crate::support::{Conf, End, Ends, Family, NAME, WeftProcess, alone, answers, set_rate};

#[test]
fn a_daemon_that_was_stopped_for_a_while_goes_on() {
    let _alone = alone();
    let Some(ends) = Ends::new("a_daemon_that_was_stopped_for_a_while_goes_on", 1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let a = WeftProcess::up(&ends.a, &conf_a, &[]);
    let b = WeftProcess::up(&ends.b, &conf_b, &["--tun-threads", "2"]);
    let (source, destination) = (End::A.inner(Family::V4), End::B.inner(Family::V4));
    assert!(answers(&ends.a, destination));
    let before = Counters::read(&ends.b).unwrap();

    let receiver = ends.b.run(|| TcpReceiver::listen(SocketAddr::new(destination, 0))).unwrap();
    let senders = TcpSenders::start(&ends.a, receiver.local_addr(), 4, Amount::Count(4 << 20), 1).unwrap();
    let options = NumberedOptions {
        flows: 20,
        datagrams_per_second: 20_000,
        burst: 20,
        segmentation_offload: true,
        amount: Amount::Count(u64::MAX),
        ..NumberedOptions::default()
    };
    let numbered = Numbered::start(&ends.a, source, &ends.b, destination, options).unwrap();
    wait_until("the first datagrams", || (numbered.progress().1 > 100).then_some(()));

    b.signal(Signal::SIGSTOP);
    let full = || Counters::read(&ends.b).unwrap().since(&before).udp_receive_buffer_full() > 0;
    wait_until("the buffers of B's sockets to fill", || full().then_some(()));
    let arrived = numbered.progress().1;
    b.signal(Signal::SIGCONT);

    wait_until("new datagrams", || (numbered.progress().1 > arrived + 10_000).then_some(()));
    numbered.stop();
    let forward = numbered.finish().forward;
    assert_eq!((forward.out_of_order, forward.duplicates, forward.corrupt), (0, 0, 0), "{forward:?}");
    for flow in senders.finish() {
        assert_eq!((&flow.error, flow.confirmed), (&None, 4 << 20));
    }
    drop(receiver.finish());
    a.stop();
    b.stop();
}

#[test]
fn a_link_that_is_too_slow_pushes_back_to_the_senders() {
    let _alone = alone();
    let test = "a_link_that_is_too_slow_pushes_back_to_the_senders";
    for setting in [Setting::inline(1), Setting::inline(4), Setting::threads(2)] {
        let Some(bed) = Bed::new(test, setting) else { return };
        // A datagram belongs to the buffer of weft's socket until the link lets it go.
        if let Err(error) = set_rate(&bed.ends.a, "eth0", 1_000_000) {
            return weft_lab::not_run(test, &format!("the kernel cannot slow a link down: {error}"));
        }
        let options = NumberedOptions {
            flows: 20,
            datagrams_per_second: 100_000,
            burst: 20,
            segmentation_offload: true,
            amount: Amount::Count(u64::MAX),
            ..NumberedOptions::default()
        };
        let numbered = start_numbered(&bed, End::A, End::B, Family::V4, options);
        // Once its socket is full weft reads nothing more, and the kernel has to drop.
        let mut before = bed.read(End::A);
        wait_until("weft to stop reading while the TUN's ring overflows", || {
            let now = bed.read(End::A);
            let dropped = |reading: &Reading| reading.kernel.interface(NAME).tx_dropped;
            let is_blocked = now.weft.tun.segments_read == before.weft.tun.segments_read
                && now.weft.udp.datagrams_sent == before.weft.udp.datagrams_sent
                && dropped(&now) > dropped(&before);
            before = now;
            is_blocked.then_some(())
        });
        set_rate(&bed.ends.a, "eth0", u32::MAX).unwrap();
        numbered.stop();
        finish_in_order(&bed, numbered);
        bed.assert_balanced();
        bed.stop();
    }
}

#[test]
fn a_link_that_was_down_costs_what_was_sent_meanwhile_and_no_more() {
    let _alone = alone();
    let test = "a_link_that_was_down_costs_what_was_sent_meanwhile_and_no_more";
    let Some(bed) = Bed::new(test, Setting::threads(1)) else { return };
    let address = SocketAddr::new(End::B.inner(Family::V4), 0);
    let receiver = bed.ends.b.run(|| TcpReceiver::listen(address)).unwrap();
    let amount = Amount::Count(8 << 20);
    let senders = TcpSenders::start(&bed.ends.a, receiver.local_addr(), 4, amount, 1).unwrap();
    wait_until("the first bytes", || (receiver.bytes() > 0).then_some(()));
    link::set_down(&bed.ends.b, "eth0").unwrap();
    let failed = || bed.read(End::A).weft.drops.total();
    let before = failed();
    // The veth swallows what is sent through it, or the kernel refuses to send: either way TCP sends again.
    let resent = || bed.read(End::A).kernel.tcp_retransmits() > 0 || failed() > before;
    wait_until("TCP to notice", || resent().then_some(()));
    link::set_up(&bed.ends.b, "eth0").unwrap();
    for flow in senders.finish() {
        assert_eq!((&flow.error, flow.confirmed), (&None, 8 << 20));
    }
    assert!(receiver.finish().iter().all(|flow| flow.first_mismatch.is_none()));
    bed.stop();
}
