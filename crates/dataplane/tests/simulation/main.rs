//! Whole event loops in worlds of virtual time and chance, which are functions of their seeds.
//!
//! A world is a gateway with up to four clients, for seconds or for a week. The network loses, repeats,
//! delays and damages datagrams, and strangers invent some; address translators change ports, sockets and
//! TUNs are full or fail, daemons restart or hand over, peers go and come. Kernels give super-packets, and
//! join datagrams; links carry packets of other lengths. Gateways have several packet threads, between which
//! peers move. Afterwards, and all the time: a packet arrives unchanged, once, in the order of its flow;
//! every packet and datagram is taken or counted; no nonce is used twice; no session is used for too long; a
//! turn does not do too much, and no event loop spins; peers agree again within a bound, and learn what paths
//! carry; and silence follows.
//!
//! `plan.rs` draws a world from its seed, `world.rs` executes it with `events.rs`, and `promises.rs` has what
//! holds at its end. The others are its parts: the network, what is seen on the wire, kernels, sockets, TUNs,
//! packets, daemons with their packet threads and their control thread.
//!
//! `WEFT_SIMULATION_SEED=N` runs one world, `WEFT_SIMULATION_WORLDS=N` as many as that.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod chance;
mod control;
mod events;
mod kernel;
mod network;
mod node;
mod packet;
mod plan;
mod promises;
mod system;
mod threads;
mod tun;
mod udp;
mod wire;
mod world;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    let began = std::time::Instant::now();
    let worlds = number_in("WEFT_SIMULATION_WORLDS").unwrap_or(WORLDS);
    let next = AtomicU64::new(0);
    let some = || {
        let mut some = Outcome::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= worlds {
                return some;
            }
            some.add(&World::run(seed));
        }
    };
    let mut all = Outcome::default();
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        threads.into_iter().for_each(|thread| all.add(&thread.join().unwrap()));
    });
    println!("{all:?} in {:?}", began.elapsed());
}

#[test]
fn a_seed_is_the_same_world_again() {
    for seed in [1, 2, 3] {
        assert_eq!(World::run(seed), World::run(seed));
    }
    assert_ne!(World::run(1).trace, World::run(2).trace);
}
