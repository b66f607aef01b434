use std::collections::BTreeMap;

use super::*;

/// Samples of 10 s at both ends, which `change` makes different from those of a sender that is held by its
/// congestion window for no known reason.
fn test(change: impl Fn(u64, &mut Sample, &mut Sample)) -> Vec<Verdict> {
    let [mut sender, mut receiver] = [Vec::new(), Vec::new()];
    for i in 0..=100 {
        let counters = Counters { at_us: i * 100_000, busy_us: vec![i * 30_000], ..Counters::default() };
        let cpu = CpuTimes {
            machine_busy_us: i * 100_000,
            machine_us: i * 200_000,
            own_us: i * 80_000,
            thread_us: i * 40_000,
        };
        let plain = Sample { at_us: i * 100_000, cpu, counters: Some(counters), ..Sample::default() };
        let tcp =
            Tcp { busy_us: i * 100_000, rtt_us: 20_500, min_rtt_us: 20_000, streams: 1, ..Tcp::default() };
        let (mut here, mut there) = (Sample { tcp: Some(tcp), ..plain.clone() }, plain);
        change(i, &mut here, &mut there);
        sender.push(here);
        receiver.push(there);
    }
    verdicts(&sender, &receiver)
}

#[track_caller]
fn assert_main(verdicts: &[Verdict], cause: Cause, share: f64) {
    let main = verdicts.first().unwrap();
    assert!(main.cause == cause && (main.share - share).abs() < 0.02, "{verdicts:?}");
    assert!((verdicts.iter().map(|verdict| verdict.share).sum::<f64>() - 1.0).abs() < 0.02, "{verdicts:?}");
}

fn tcp(sample: &mut Sample) -> &mut Tcp {
    sample.tcp.as_mut().unwrap()
}

fn counters(sample: &mut Sample) -> &mut Counters {
    sample.counters.as_mut().unwrap()
}

#[test]
fn nothing_is_said_without_evidence() {
    assert_main(&test(|_, _, _| {}), Cause::Unclear, 1.0);
    assert_eq!(verdicts(&[], &[]), []);
    assert_eq!(verdicts(&[Sample::default()], &[]), []);
}

#[test]
fn the_kernel_tells_the_windows_and_the_idle_time() {
    let window = test(|i, here, _| tcp(here).rwnd_limited_us = i * 80_000);
    assert_main(&window, Cause::ReceiveWindow, 0.8);
    let buffer = test(|i, here, _| tcp(here).sndbuf_limited_us = i * 70_000);
    assert_main(&buffer, Cause::SendBuffer, 0.7);
    let idle = test(|i, here, _| tcp(here).busy_us = i * 10_000);
    assert_main(&idle, Cause::Application, 0.9);
}

#[test]
fn a_full_buffer_is_not_the_limit_before_something_that_is_slower() {
    let with = |change: fn(u64, &mut Sample, &mut Sample)| {
        test(move |i, here, there| {
            tcp(here).sndbuf_limited_us = i * 60_000;
            tcp(here).rwnd_limited_us = i * 40_000;
            change(i, here, there);
        })
    };
    assert_main(&with(|_, _, _| {}), Cause::SendBuffer, 0.6);
    assert_main(&with(|i, here, _| counters(here).busy_us = vec![i * 95_000]), Cause::PacketThread, 0.98);
    assert_main(&with(|i, here, _| here.cpu.machine_busy_us = i * 195_000), Cause::SenderCpu, 0.6);
    assert_main(&with(|i, _, there| there.cpu.machine_busy_us = i * 195_000), Cause::ReceiverCpu, 1.0);
}

#[test]
fn a_window_below_the_congestion_window_is_the_limit_between_the_kernels_times_too() {
    let with = |window: u64| {
        test(move |i, here, _| {
            let tcp = tcp(here);
            (tcp.cwnd_bytes, tcp.receive_window_bytes) = (65_000, window);
            tcp.rwnd_limited_us = i * 30_000;
        })
    };
    assert_main(&with(66_000), Cause::ReceiveWindow, 1.0);
    assert_main(&with(130_000), Cause::Unclear, 0.7);
    // A kernel that does not tell the window.
    assert_main(&with(0), Cause::Unclear, 0.7);
}

#[test]
fn a_raised_round_trip_is_a_link_with_and_without_loss() {
    assert_main(&test(|_, here, _| tcp(here).rtt_us = 27_100), Cause::Link, 1.0);
    let with_loss = test(|i, here, _| {
        tcp(here).rtt_us = 35_000;
        tcp(here).retransmits = i;
    });
    assert_main(&with_loss, Cause::Link, 1.0);
    // A loss that ends a filled queue is of the link, also while the queue is empty after it.
    let after_loss = test(|i, here, _| {
        tcp(here).retransmits = i / 20;
        tcp(here).rtt_us = if i % 20 == 19 { 35_000 } else { 20_000 };
    });
    assert_main(&after_loss, Cause::Link, 0.82);
    // A quarter is not enough on a short round trip.
    let short = test(|_, here, _| (tcp(here).rtt_us, tcp(here).min_rtt_us) = (1_500, 200));
    assert_main(&short, Cause::Unclear, 1.0);
}

#[test]
fn a_loss_at_the_least_round_trip_is_outside_and_lasts() {
    assert_main(&test(|i, here, _| tcp(here).retransmits = i / 20), Cause::LossOutside, 0.81);
    // Once, at the third second: for as long as it shows.
    let once = test(|i, here, _| tcp(here).retransmits = u64::from(i >= 30));
    assert_eq!(once[1].cause, Cause::LossOutside, "{once:?}");
    assert!((once[1].share - 0.3).abs() < 0.02, "{once:?}");
}

#[test]
fn packets_over_a_limit_are_told_at_either_end_and_need_a_loss_of_the_test() {
    for end in [0, 1] {
        let limit = test(|i, here, there| {
            tcp(here).retransmits = i;
            tcp(here).rtt_us = 40_000;
            counters(if end == 0 { here } else { there }).over_limit = i * 3;
        });
        assert_main(&limit, Cause::RateLimit, 1.0);
    }
    let other_traffic = test(|i, _, there| counters(there).over_limit = i * 3);
    assert_main(&other_traffic, Cause::Unclear, 1.0);
}

#[test]
fn a_packet_thread_is_the_limit_when_it_is_always_busy_or_drops_and_the_queue_before_it_otherwise() {
    let busy = test(|i, _, there| counters(there).busy_us = vec![i * 10_000, i * 95_000]);
    assert_main(&busy, Cause::PacketThread, 0.98);
    let drops = test(|i, here, there| {
        tcp(here).retransmits = i;
        counters(there).drops = BTreeMap::from([("overload".to_owned(), i)]);
    });
    assert_main(&drops, Cause::PacketThread, 1.0);
    // The kernel dropped what the daemon had not read yet, though it has time.
    let before = test(|i, here, there| {
        tcp(here).retransmits = i;
        counters(there).drops = BTreeMap::from([("tun_queue".to_owned(), i)]);
    });
    assert_main(&before, Cause::KernelQueue, 1.0);
    // A reason that has nothing to do with the rate.
    let others = test(|i, here, there| {
        tcp(here).retransmits = i;
        counters(there).drops = BTreeMap::from([("no_peer".to_owned(), i)]);
    });
    assert_main(&others, Cause::LossOutside, 1.0);
    // Counters that are read once a second.
    let seldom = test(|i, here, _| {
        let second = i / 10;
        (counters(here).at_us, counters(here).busy_us) = (second * 1_000_000, vec![second * 950_000]);
    });
    assert_main(&seldom, Cause::PacketThread, 0.81);
    // The first ones are from before the test: there is no time for their work.
    let first = test(|i, here, _| counters(here).at_us = (i * 100_000).saturating_sub(99_000));
    assert_eq!(first.len(), 1, "{first:?}");
}

#[test]
fn a_machine_is_full_if_the_test_fills_it() {
    let sender = test(|i, here, _| here.cpu.machine_busy_us = i * 195_000);
    assert_main(&sender, Cause::SenderCpu, 1.0);
    let receiver = test(|i, here, there| {
        there.cpu.machine_busy_us = i * 195_000;
        tcp(here).rwnd_limited_us = i * 60_000;
    });
    assert_main(&receiver, Cause::ReceiverCpu, 1.0);
    let thread = test(|i, here, _| {
        here.cpu.thread_us = i * 95_000;
        tcp(here).busy_us = i * 20_000;
    });
    assert_main(&thread, Cause::SenderCpu, 1.0);
    // A packet thread that waits for a processor.
    let waits = test(|i, here, _| {
        counters(here).busy_us = vec![i * 99_000];
        here.cpu.machine_busy_us = i * 195_000;
    });
    assert_main(&waits, Cause::SenderCpu, 1.0);
    let other_programs = test(|i, here, _| {
        here.cpu.machine_busy_us = i * 200_000;
        here.cpu.own_us = i * 20_000;
    });
    assert_main(&other_programs, Cause::Unclear, 1.0);
}

#[test]
fn slow_start_counts_while_it_lasts() {
    let start = test(|i, here, _| tcp(here).in_slow_start = u32::from(i <= 70));
    assert_main(&start, Cause::SlowStart, 0.7);
}

#[test]
fn what_happened_outside_is_the_difference_of_the_counters() {
    let counters = |expected_messages, received_messages, displaced_messages| {
        Some(Counters { expected_messages, received_messages, displaced_messages, ..Counters::default() })
    };
    let outside_of = |before, after| outside(&[before, after], 1_000);
    let found = outside_of(counters(100, 90, 1), counters(1_100, 1_080, 4)).unwrap();
    assert_eq!((found.lost, found.displaced), (10, 3));
    assert!((found.lost_share - 0.01).abs() < 1e-9);
    assert_eq!(outside_of(None, counters(1, 1, 0)), None);
    // More than was sent, as no daemon counts.
    let found = outside_of(counters(0, 0, 0), counters(u64::MAX, 900, u64::MAX)).unwrap();
    assert_eq!((found.lost, found.displaced), (100, 1_000));
    // Messages that came late; a daemon that does not count.
    assert_eq!(outside_of(counters(10, 5, 0), counters(20, 19, 0)).unwrap().lost, 0);
    assert_eq!(outside_of(counters(0, 0, 0), counters(0, 0, 0)), None);
}
