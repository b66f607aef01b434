//! Every byte arrives in order, or both ends learn that it did not.

use std::time::Duration;

use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn bytes_arrive_over_a_link_that_loses_nothing() {
    for is_ipv4 in [true, false] {
        let mut world = World::new("rate=1gbit,delay=5ms,queue=8mb", 1);
        let ids = world.connect(is_ipv4);
        let done = exchange(&mut world, ids, [20 << 20, 3 << 20], MINUTE);
        assert_eq!(done.each_ref().map(|one| (one.read, one.error)), [(3 << 20, None), (20 << 20, None)]);
        for end in &world.ends {
            assert_eq!(end.stats().retransmitted_bytes, 0);
        }
    }
}

/// Exchanges bytes over a bad link, and checks that nothing is left behind.
fn survives(link: &str, mischief: Mischief, seed: u64, totals: [u64; 2]) {
    let mut world = World::new(link, seed);
    world.mischief = mischief;
    let ids = world.connect(!seed.is_multiple_of(2));
    let done = exchange(&mut world, ids, totals, 60 * MINUTE);
    assert_eq!(done.each_ref().map(|one| (one.read, one.error)), [(totals[1], None), (totals[0], None)]);
    for (end, id) in ids.into_iter().enumerate() {
        let now = world.now;
        world.ends[end].release(id, now);
    }
    // What is left ends by itself: a world without events is at rest.
    world.run(10 * MINUTE, |world| world.states().iter().all(Vec::is_empty));
    while world.step() {}
    for end in &world.ends {
        let stats = end.stats();
        assert_eq!((stats.streams, stats.time_wait, stats.half_open, stats.reserved_bytes), (0, 0, 0, 0));
    }
}

#[test]
fn bytes_arrive_over_every_kind_of_bad_link() {
    let links = [
        "rate=100mbit,delay=10ms,loss=1%",
        "rate=100mbit,delay=10ms,loss=10%",
        "rate=20mbit,delay=30ms,queue=60kb",
        "rate=100mbit,delay=5ms,reorder=5%,reorder-by=3ms",
        "rate=100mbit,delay=5ms,reorder=20%,reorder-by=20ms,loss=2%",
        "delay=1ms,loss=3%",
    ];
    let mischiefs = [
        Mischief::default(),
        Mischief { duplicate: 20, corrupt: 0 },
        Mischief { duplicate: 50, corrupt: 50 },
    ];
    for (seed, link) in (1..).zip(links) {
        for (more, mischief) in (0..).zip(mischiefs) {
            survives(link, mischief, 10 * seed + more, [600_000, 200_000]);
        }
    }
}

#[test]
fn every_third_packet_may_be_lost() {
    for seed in 0..5 {
        survives("rate=10mbit,delay=10ms,loss=30%", Mischief::default(), seed, [100_000, 100_000]);
    }
}

/// Sends 20 MB over a link, and returns the seconds that it takes and the counters of the sender.
fn upload(link: &str) -> (f64, weft_endpoint::Stats) {
    let mut world = World::new(link, 3);
    let ids = world.connect(true);
    let start = world.now;
    let done = exchange(&mut world, ids, [20 << 20, 0], MINUTE);
    assert_eq!((done[1].read, done[1].error), (20 << 20, None));
    ((world.now - start).as_secs_f64(), world.ends[0].stats())
}

#[test]
fn a_link_is_filled_and_reordering_is_no_loss() {
    // 20 MB take 0.84 s on the link, and the window doubles from 13.8 KB to 1.5 MB in seven round trips.
    let (time, stats) = upload("rate=200mbit,delay=30ms,queue=3mb");
    assert!(time < 1.4, "{time} s");
    assert_eq!((stats.retransmitted_bytes, stats.timeouts), (0, 0));
    let (reordered, stats) = upload("rate=200mbit,delay=30ms,queue=3mb,reorder=1%,reorder-by=300us");
    assert!(reordered < time / 0.95, "{reordered} s with reordering, {time} s without");
    assert_eq!(stats.retransmitted_bytes, 0);
}
