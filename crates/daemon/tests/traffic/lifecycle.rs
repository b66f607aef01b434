//! A daemon ends when it is told to, or when its device is gone, and leaves nothing behind.

use nix::sys::signal::Signal;
use weft_lab::traffic::Amount;
use weft_lab::{link, until};

use crate::support::{Conf, End, Ends, Family, NAME, PORT, Running, Traces, answers, links_of, udp_ports_of};

const THREADS: [&str; 3] = ["0", "1", "4"];

#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    for tun_threads in THREADS {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let (conf, _) = Conf::pair(Family::V6);
            let weft = Running::up(&ends.a, &conf, &["--tun-threads", tun_threads]);
            assert!(links_of(&ends.a).iter().any(|(name, _, is_up)| name == NAME && *is_up));
            assert!(udp_ports_of(&ends.a).contains(&PORT));
            weft.signal(signal);
            let (ended, _) = weft.wait();
            assert_eq!(ended.code, Some(0), "{signal}: {ended:?}");
            assert!(
                ended.stderr.contains(signal.as_str()) && ended.stderr.contains("interface is down"),
                "{ended:?}"
            );
            before.assert_restored(&ends.a);
        }
    }
}

#[test]
fn a_signal_ends_it_in_the_middle_of_traffic() {
    let _alone = crate::support::alone();
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    for tun_threads in THREADS {
        let (conf_a, conf_b) = Conf::pair(Family::V4);
        let a = Running::up(&ends.a, &conf_a, &["--tun-threads", tun_threads]);
        let b = Running::up(&ends.b, &conf_b, &["--tun-threads", tun_threads]);
        let transfer = ends.transfer(End::A, Family::V4, 4, Amount::Count(u64::MAX));
        transfer.goes_on();
        a.stop();
        before.assert_restored(&ends.a);
        // The same address again, so that the streams come to their end.
        let a = Running::up(&ends.a, &conf_a, &["--tun-threads", tun_threads]);
        transfer.stop();
        until("the streams end", || transfer.is_finished());
        a.stop();
        b.stop();
    }
}

#[test]
fn a_peer_that_ended_and_came_back_is_found_again() {
    let Some(ends) = Ends::new(1500) else { return };
    let (conf_a, conf_b) = Conf::pair(Family::V6);
    let a = Running::up(&ends.a, &conf_a, &[]);
    for _ in 0..2 {
        let b = Running::up(&ends.b, &conf_b, &[]);
        assert!(answers(&ends.b, End::A.inner(Family::V6)));
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
        b.stop();
    }
    a.stop();
}

#[test]
fn a_deleted_interface_ends_it_with_a_word_about_it() {
    let Some(ends) = Ends::new(1500) else { return };
    let before = Traces::of(&ends.a);
    for tun_threads in THREADS {
        let (conf, _) = Conf::pair(Family::V4);
        let weft = Running::up(&ends.a, &conf, &["--tun-threads", tun_threads]);
        link::remove(&ends.a, NAME).unwrap();
        let (ended, _) = weft.wait();
        assert_eq!(ended.code, Some(1), "{tun_threads} threads: {ended:?}");
        assert!(ended.stderr.contains("the TUN device is gone"), "{ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        before.assert_restored(&ends.a);
    }
}

#[test]
fn an_interface_set_down_and_up_again_carries_on() {
    let Some(ends) = Ends::new(1500) else { return };
    for tun_threads in THREADS {
        let (conf_a, conf_b) = Conf::pair(Family::V4);
        let a = Running::up(&ends.a, &conf_a, &["--tun-threads", tun_threads]);
        let b = Running::up(&ends.b, &conf_b, &["--tun-threads", tun_threads]);
        assert!(answers(&ends.a, End::B.inner(Family::V4)));
        link::set_down(&ends.b, NAME).unwrap();
        link::set_up(&ends.b, NAME).unwrap();
        // IPv4 alone: the kernel takes the IPv6 addresses away when an interface goes down.
        assert!(answers(&ends.a, End::B.inner(Family::V4)), "{tun_threads} threads: {}", b.log());
        a.stop();
        b.stop();
    }
}
