//! After any network faults, both ends agree on a session soon after the faults end.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::sim::{A, B, Network, World, ms, secs};

/// A stretch of time with constant network conditions.
#[derive(Clone, Debug)]
struct Stretch {
    network: Network,
    /// Directions that lose everything: A to B, and B to A.
    cut: [bool; 2],
    /// Number of packets that each end sends, both at the same times.
    packets: [u64; 2],
    /// Time between two packets.
    gap_ms: u64,
    /// Silence after the packets.
    idle_ms: u64,
}

fn network(keeps_order: bool) -> impl Strategy<Value = Network> {
    let delay = prop_oneof![3 => 1..200_u64, 1 => 1000..4000_u64];
    let jitter = prop_oneof![Just(0), 1..100_u64, 1..3000_u64];
    let loss = prop_oneof![2 => Just(0), 2 => 1..30_u64, 1 => 30..90_u64];
    (delay, jitter, loss, prop_oneof![Just(0), 1..40_u64]).prop_map(move |(delay, jitter, loss, twice)| {
        Network {
            delay: ms(delay),
            jitter: ms(jitter),
            loss_percent: loss,
            duplication_percent: twice,
            keeps_order,
        }
    })
}

fn stretch(keeps_order: bool) -> impl Strategy<Value = Stretch> {
    let idle = prop_oneof![
        4 => 0..2000_u64,
        3 => 2000..20_000_u64,
        2 => 20_000..200_000_u64,
        1 => 200_000..700_000_u64,
    ];
    let cut = prop::array::uniform2(prop::bool::weighted(0.15));
    let gap = prop_oneof![0..10_u64, 10..500_u64, 500..15_000_u64];
    (network(keeps_order), cut, prop::array::uniform2(0..12_u64), gap, idle).prop_map(
        |(network, cut, packets, gap_ms, idle_ms)| Stretch { network, cut, packets, gap_ms, idle_ms },
    )
}

/// Checks that every received packet was sent, that none arrived twice, and that the order is kept if the
/// network keeps it.
fn check_received(world: &World, sent: &[Vec<u64>; 2], keeps_order: bool) {
    for node in [A, B] {
        let numbers = world.nodes[node].numbers();
        let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), numbers.len(), "something arrived twice: {numbers:?}");
        assert!(distinct.iter().all(|number| sent[1 - node].contains(number)));
        if keeps_order {
            assert!(numbers.is_sorted(), "{numbers:?}");
        }
    }
}

fn weather_and_after(seed: u64, keeps_order: bool, stretches: &[Stretch]) {
    let mut world = World::pair();
    world.seed(seed);
    let mut next = 0;
    let mut sent = [Vec::new(), Vec::new()];
    for stretch in stretches {
        world.network = stretch.network;
        world.cut = [(A, B), (B, A)]
            .into_iter()
            .zip(stretch.cut)
            .filter(|(_, cut)| *cut)
            .map(|(way, _)| way)
            .collect();
        for turn in 0..stretch.packets[A].max(stretch.packets[B]) {
            for node in [A, B] {
                if turn < stretch.packets[node] {
                    world.send(node, 1 - node, next).unwrap();
                    sent[node].push(next);
                    next += 1;
                }
            }
            world.run_for(ms(stretch.gap_ms));
        }
        world.run_for(ms(stretch.idle_ms));
    }

    world.network = Network::PERFECT;
    world.cut.clear();
    check_received(&world, &sent, keeps_order);
    // Lets datagrams in flight arrive. Silence is then noticed within 15.4 s, and a handshake follows within
    // 5.4 s.
    world.run_for(secs(8));
    let mut agreed = None;
    for second in 0..25 {
        let passed = world.passes_both_ways(next);
        sent[A].push(next);
        sent[B].push(next);
        next += 1;
        if passed {
            agreed.get_or_insert(second);
        }
    }
    assert!(agreed.is_some(), "no agreement within 25 s");
    check_received(&world, &sent, keeps_order);
    // The agreement lasts over more than one session.
    let before = [A, B].map(|node| world.nodes[node].packets.len());
    let first = next;
    for _ in 0..130 {
        for node in [A, B] {
            world.send(node, 1 - node, next).unwrap();
        }
        world.run_for(ms(1500));
        next += 1;
    }
    world.run_for(secs(1));
    for node in [A, B] {
        assert_eq!(world.nodes[node].numbers()[before[node]..], (first..next).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    #[test]
    fn two_ends_agree_after_any_weather(
        seed: u64,
        stretches in prop::collection::vec(stretch(false), 1..6),
    ) {
        weather_and_after(seed, false, &stretches);
    }

    #[test]
    fn two_ends_agree_and_keep_the_order_of_a_network_that_does(
        seed: u64,
        stretches in prop::collection::vec(stretch(true), 1..6),
    ) {
        weather_and_after(seed, true, &stretches);
    }
}
