//! How fast a sender is, and what it sends again, on links in virtual time.

use std::time::Duration;

use weft_endpoint::{CongestionControl, Limits};

use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);

/// What a transfer took.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    seconds: f64,
    /// Bytes sent again, as a share of all.
    again: f64,
    timeouts: u64,
}

struct Sender {
    control: CongestionControl,
    /// Packets that arrive within this time are one batch.
    batch: Duration,
    seed: u64,
    /// The link marks what waits longer.
    mark: Option<Duration>,
}

const CUBIC: Sender =
    Sender { control: CongestionControl::Cubic, batch: Duration::from_micros(200), seed: 3, mark: None };

impl Sender {
    fn upload(&self, megabytes: u64, link: &str) -> Transfer {
        let configs = [0, 1].map(|end| {
            let mut config = config(end);
            config.limits =
                Limits { receive_window: 8 << 20, congestion_control: self.control, ..Limits::default() };
            config
        });
        let mut world = World::with(link, self.seed, configs);
        (world.batch, world.mark) = (self.batch, self.mark);
        let ids = world.connect(true);
        let start = world.now;
        let total = megabytes * 1_000_000;
        let done = exchange(&mut world, ids, [total, 0], 5 * MINUTE);
        assert_eq!((done[1].read, done[1].error), (total, None));
        let stats = world.ends[0].stats();
        let again = stats.retransmitted_bytes as f64 / total as f64;
        Transfer { seconds: (world.now - start).as_secs_f64(), again, timeouts: stats.timeouts }
    }
}

#[test]
fn a_rare_loss_on_a_long_path_costs_less_than_with_new_reno() {
    // 50 MB take 2.2 s on the link.
    let seconds = |control| -> f64 {
        let link = "rate=200mbit,delay=30ms,loss=0.01%";
        let transfer = |seed| {
            let transfer = Sender { control, seed, ..CUBIC }.upload(50, link);
            assert!(transfer.again < 0.05 && transfer.timeouts == 0, "{transfer:?}");
            transfer.seconds
        };
        (1..4).map(transfer).sum()
    };
    let (cubic, reno) = (seconds(CongestionControl::Cubic), seconds(CongestionControl::NewReno));
    assert!(cubic < 0.7 * reno, "{cubic} s with CUBIC, {reno} s with NewReno");
}

#[test]
fn a_queue_of_an_eighth_of_the_path_does_not_slow_a_stream() {
    for batch in [200, 1000, 3000].map(Duration::from_micros) {
        let transfer = Sender { batch, ..CUBIC }.upload(50, "rate=200mbit,delay=30ms,queue=200kb");
        assert!(transfer.seconds < 3.0 && transfer.again < 0.05, "{batch:?} {transfer:?}");
    }
}

#[test]
fn packets_that_come_late_are_no_losses() {
    // 30 MB take 1.3 s on the link.
    for batch in [200, 3000].map(Duration::from_micros) {
        let link = "rate=200mbit,delay=30ms,reorder=1%,reorder-by=20ms";
        let transfer = Sender { batch, ..CUBIC }.upload(30, link);
        assert!(transfer.seconds < 4.0 && transfer.timeouts == 0, "{batch:?} {transfer:?}");
    }
}

#[test]
fn slow_start_ends_before_a_queue_overflows() {
    // 50 MB take 2.2 s on the link. A queue as long as the path: its default.
    for batch in [200, 3000].map(Duration::from_micros) {
        let transfer = Sender { batch, ..CUBIC }.upload(50, "rate=200mbit,delay=30ms");
        assert!(transfer.seconds < 2.55 && transfer.again < 0.005, "{batch:?} {transfer:?}");
    }
}

#[test]
fn a_path_that_became_slow_during_a_pause_is_not_flooded() {
    for (pause, link, bytes, seconds, again) in [
        (Duration::from_secs(30), "rate=20mbit,delay=30ms,queue=60kb", 1_000_000, 1.2, 0.3),
        // A short pause costs nothing: 5 MB take 0.2 s on the link.
        (Duration::from_millis(200), "rate=200mbit,delay=30ms", 5_000_000, 0.35, 0.01),
    ] {
        let mut world = World::new("rate=200mbit,delay=30ms", 3);
        let [client, server] = world.connect(true);
        let mut applications = [Application::new(client, 20_000_000, 0), Application::new(server, 0, 1)];
        // Neither ends its stream.
        applications.iter_mut().for_each(|application| application.finished = true);
        exchange_until(&mut world, &mut applications, MINUTE, |[_, server]| server.read == 20_000_000);
        world.run(MINUTE, |world| world.ends[0].stream(client).unwrap().in_flight == 0);
        let before = world.ends[0].stats().retransmitted_bytes;
        world.now += pause;
        world.pipes[0] = weft_lab::emulator::Pipe::new(&link.parse().unwrap(), 0);
        let start = world.now;
        applications[0].total += bytes;
        exchange_until(&mut world, &mut applications, MINUTE, |[client, server]| server.read == client.total);
        let time = (world.now - start).as_secs_f64();
        let share = (world.ends[0].stats().retransmitted_bytes - before) as f64 / bytes as f64;
        assert!(time < seconds && share < again, "{pause:?}: {time} s, {share} sent again");
    }
}

#[test]
fn a_queue_that_marks_does_not_overflow() {
    // 20 MB take 8.2 s on the link, and the queue has 24 ms.
    for batch in [200, 3000].map(Duration::from_micros) {
        let mark = Some(Duration::from_millis(8));
        let transfer = Sender { batch, mark, ..CUBIC }.upload(20, "rate=20mbit,delay=10ms,queue=60kb");
        assert!(transfer.seconds < 9.0 && transfer.again == 0.0, "{batch:?} {transfer:?}");
    }
}
