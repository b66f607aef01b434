//! What stands still for a while goes on where it was, and nothing is lost inside of weft meanwhile.

use nix::sys::signal::Signal;
use weft_lab::counters::Counters;
use weft_lab::numbered::{Numbered, NumberedOptions};
use weft_lab::traffic::Amount;
use weft_lab::{here, link, until};

use crate::accounts::{Bed, Reading, Setting, with_each};
use crate::content::{finish_in_order, start_numbered};
use crate::support::{Conf, End, Ends, Family, NAME, Running, alone, answers, set_rate};

#[test]
fn a_daemon_that_was_stopped_for_a_while_goes_on() {
    let _alone = alone();
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V4);
    let a = Running::up(&ends.a, &conf_a, &[]);
    let b = Running::up(&ends.b, &conf_b, &["--tun-threads", "2"]);
    let (source, destination) = (End::A.inner(Family::V4), End::B.inner(Family::V4));
    assert!(answers(&ends.a, destination));
    let before = Counters::read(&ends.b).unwrap();

    let transfer = ends.transfer(End::A, Family::V4, 4, Amount::Count(4 << 20));
    let options = NumberedOptions {
        flows: 20,
        datagrams_per_second: 20_000,
        burst: 20,
        segmentation_offload: true,
        amount: Amount::Count(u64::MAX),
        ..NumberedOptions::default()
    };
    let numbered = Numbered::start(&ends.a, source, &ends.b, destination, options).unwrap();
    until("the first datagrams", || numbered.progress().1 > 100);

    b.signal(Signal::SIGSTOP);
    let full = || Counters::read(&ends.b).unwrap().since(&before).udp_receive_buffer_full() > 0;
    until("the buffers of B's sockets to fill", full);
    let arrived = numbered.progress().1;
    b.signal(Signal::SIGCONT);

    until("new datagrams", || numbered.progress().1 > arrived + 10_000);
    numbered.stop();
    let forward = numbered.finish().forward;
    assert_eq!((forward.out_of_order, forward.duplicates, forward.corrupt), (0, 0, 0), "{forward:?}");
    assert_eq!(transfer.finish(), 4 * (4 << 20));
    a.stop();
    b.stop();
}

#[test]
fn a_link_that_is_too_slow_pushes_back_to_the_senders() {
    let _alone = alone();
    with_each([Setting::inline(1), Setting::inline(4), Setting::threads(2)], |setting| {
        let Some(bed) = Bed::new(setting) else { return };
        // A datagram belongs to the buffer of weft's socket until the link lets it go.
        if let Err(error) = set_rate(&bed.ends.a, "eth0", 1_000_000) {
            return here::not_run(&format!("a link cannot be slowed down: {error}"));
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
        until("weft to stop reading while the TUN's ring overflows", || {
            let now = bed.read(End::A);
            let dropped = |reading: &Reading| reading.kernel.interface(NAME).tx_dropped;
            let is_blocked = now.weft.tun.segments_read == before.weft.tun.segments_read
                && now.weft.udp.datagrams_sent == before.weft.udp.datagrams_sent
                && dropped(&now) > dropped(&before);
            before = now;
            is_blocked
        });
        set_rate(&bed.ends.a, "eth0", u32::MAX).unwrap();
        numbered.stop();
        finish_in_order(&bed, numbered);
        bed.assert_balanced();
        bed.stop();
    });
}

#[test]
fn a_link_that_was_down_costs_what_was_sent_meanwhile_and_no_more() {
    let _alone = alone();
    let Some(bed) = Bed::new(Setting::threads(1)) else { return };
    let transfer = bed.ends.transfer(End::A, Family::V4, 4, Amount::Count(8 << 20));
    until("the first bytes", || transfer.bytes() > 0);
    link::set_down(&bed.ends.b, "eth0").unwrap();
    let failed = || bed.read(End::A).weft.drops.total();
    let before = failed();
    // The veth swallows what is sent through it, or the kernel refuses to send: either way TCP sends again.
    let resent = || bed.read(End::A).kernel.tcp_retransmits() > 0 || failed() > before;
    until("TCP to notice", resent);
    link::set_up(&bed.ends.b, "eth0").unwrap();
    assert_eq!(transfer.finish(), 4 * (8 << 20));
    bed.stop();
}
