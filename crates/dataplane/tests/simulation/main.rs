//! Whole event loops in worlds of virtual time and chance, which are functions of their seeds.
//!
//! A world is a gateway with up to four clients, for seconds or for a week. The network loses, repeats,
//! delays and damages datagrams, and strangers invent some; address translators change ports, sockets and
//! TUNs are full or fail, daemons restart, peers go and come. Afterwards, and all the time: a packet arrives
//! unchanged, once, in the order of its flow; every packet and datagram is taken or counted; no nonce is used
//! twice; no session is used for too long; a turn does not do too much, and no event loop spins; peers agree
//! again within a bound; and silence follows.
//!
//! `WEFT_SIMULATION_SEED=N` runs one world, `WEFT_SIMULATION_WORLDS=N` as many as that.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod chance;
mod network;
mod packet;
mod system;
mod tun;
mod udp;
mod world;

use world::{Outcome, World};

/// Worlds of a usual run.
const WORLDS: u64 = 100;

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().expect("a number"))
}

#[test]
fn in_every_world_every_promise_holds() {
    if let Some(seed) = number_in("WEFT_SIMULATION_SEED") {
        println!("{:?}", World::run(seed));
        return;
    }
    let mut all = Outcome::default();
    let began = std::time::Instant::now();
    for seed in 0..number_in("WEFT_SIMULATION_WORLDS").unwrap_or(WORLDS) {
        let one = World::run(seed);
        all.packets += one.packets;
        all.messages += one.messages;
        all.turns += one.turns;
        all.duration += one.duration;
        all.longest_turn = all.longest_turn.max(one.longest_turn);
    }
    println!("{all:?} in {:?}", began.elapsed());
}

#[test]
fn a_seed_is_the_same_world_again() {
    for seed in [1, 2, 3] {
        assert_eq!(World::run(seed), World::run(seed));
    }
    assert_ne!(World::run(1).trace, World::run(2).trace);
}
