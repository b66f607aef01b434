//! Peers that never answer: a tunnel initiates handshakes with all of them within the budget, and they delay
//! no peer that answers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weft_tunnel::{ControlQueue, DropReason, Offload, Progress};

use super::{peer, work};
use crate::sim::{A, B, Kind, World, inner_v4, ms, secs, udp};

/// Creates a world in which B has peers that never answer, at 10.128.0.0 and up.
fn world_with_absent_peers(count: u32, keepalive: Option<u16>) -> World {
    let mut world = World::of(3);
    world.introduce(A, B, Default::default());
    world.introduce(B, A, Default::default());
    world.introduce(B, crate::sim::C, Default::default());
    world.introduce(crate::sim::C, B, Default::default());
    for number in 0..count {
        let [_, x, y, z] = number.to_be_bytes();
        let mut key = [0; 32];
        key[..4].copy_from_slice(&(number + 1).to_le_bytes());
        let endpoint = SocketAddr::from(([203, x, y, z], 9));
        let mut config = peer(
            weft_tunnel::PublicKey::from_bytes(key),
            Some(endpoint),
            &format!("10.{}.{y}.{z}/32", 128 + x),
        );
        config.settings.persistent_keepalive = keepalive.and_then(std::num::NonZeroU16::new);
        world.insert(B, config);
    }
    world
}

fn initiations_to(world: &World, is_wanted: impl Fn(SocketAddr) -> bool) -> Vec<Duration> {
    let sent = world.sent.iter().filter(|sent| sent.from == B && sent.datagram.kind() == Kind::Initiation);
    sent.filter(|sent| is_wanted(sent.datagram.destination)).map(|sent| sent.at).collect()
}

#[test]
fn a_peer_that_scans_absent_peers_delays_no_other_and_loses_its_own_packets_first() {
    const ABSENT: u32 = 5000;
    let mut world = world_with_absent_peers(ABSENT, None);
    let scan = |world: &mut World, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let [_, x, y, z] = number.to_be_bytes();
            let to = IpAddr::from([10, 128 + x, y, z]);
            let packet = udp(inner_v4(crate::sim::C), to, &[7; 3000]);
            let _ = world.give(B, packet, Offload::None);
        }
    };
    let spent = work(&mut world, |world| {
        for second in 0..5 {
            for part in 0..1000 {
                let from = second * 1000 + part;
                scan(world, from..from + 1);
                world.run_for(ms(1));
            }
        }
    });
    let sent = initiations_to(&world, |to| to.ip() != world.nodes[A].address.ip());
    assert!(sent.len() > 1000, "{}", sent.len());
    assert!(spent <= ms(500 + 600), "a tenth of 5 s, and what was saved: {spent:?}");
    assert!(world.nodes[B].tunnel.handshake_load(world.now).initiations_waiting > 1000);

    // The handshake for a local packet to a peer without a session does not wait behind those of the scan.
    world.sent.clear();
    let before = world.elapsed();
    world.send(B, A, 1).unwrap();
    scan(&mut world, 0..ABSENT);
    world.run_for(ms(200));
    let to_a = world.nodes[A].address;
    let first = initiations_to(&world, |to| to == to_a)[0];
    assert!(first - before <= ms(10), "after {:?}", first - before);
    assert_eq!(world.nodes[A].numbers(), [1], "and it has arrived");
    // Neither does that for a peer with a persistent keepalive.
    let fresh = SocketAddr::from(([203, 255, 0, 1], 9));
    let mut config = peer(weft_tunnel::PublicKey::from_bytes([9; 32]), Some(fresh), "10.255.0.1/32");
    config.settings.persistent_keepalive = std::num::NonZeroU16::new(25);
    world.insert(B, config);
    world.run_for(ms(10));
    assert_eq!(initiations_to(&world, |to| to == fresh).len(), 1);
    assert_eq!(
        world.nodes[B].stats().staged_segments as usize,
        world.nodes[B].tunnel.peers().filter(|peer| peer.staged_bytes > 0).count()
    );
    assert!(world.nodes[B].dropped(DropReason::StagingFull) <= u64::from(ABSENT) + 1000);
}

#[test]
fn a_start_with_many_keepalives_sends_them_within_the_budget() {
    const ABSENT: u32 = 20_000;
    let mut world = world_with_absent_peers(ABSENT, Some(25));
    // The work of one call is bounded: some peers' timers, and two initiations.
    let now = world.now;
    let mut control = ControlQueue::new(256);
    let tunnel = &mut world.nodes[B].tunnel;
    assert_eq!(tunnel.handle_timeout(now, &mut control), Progress::Blocked);
    assert!((1..=256).contains(&tunnel.handshake_load(now).initiations_waiting));
    assert!(control.is_empty());
    while control.len() < 10 {
        let before = control.len();
        assert_eq!(tunnel.handle_timeout(now, &mut control), Progress::Blocked);
        assert!([0, 2].contains(&(control.len() - before)));
    }
    world.run_for(ms(100));
    world.sent.clear();
    let spent = work(&mut world, |world| world.run_for(secs(10)));
    assert!(spent <= ms(1010 + 600), "a tenth of 10 s, and what was saved: {spent:?}");
    assert!(initiations_to(&world, |_| true).len() > 2000);
    // Local traffic is served soon nevertheless.
    let before = world.elapsed();
    world.send(B, A, 1).unwrap();
    world.run_for(ms(300));
    let to_a = world.nodes[A].address;
    let first = initiations_to(&world, |to| to == to_a)[0];
    assert!(first - before <= ms(10), "after {:?}", first - before);
    assert_eq!(world.nodes[A].numbers(), [1]);
}

#[test]
fn a_peer_that_waits_for_two_reasons_is_sent_one_initiation() {
    const ABSENT: u32 = 3000;
    let mut world = world_with_absent_peers(ABSENT, None);
    // More than idle time has saved, for packets from C; and then for packets of this machine.
    for source in [inner_v4(crate::sim::C), inner_v4(B)] {
        for number in 0..ABSENT {
            let [_, x, y, z] = number.to_be_bytes();
            let packet = udp(source, IpAddr::from([10, 128 + x, y, z]), b"hello");
            let _ = world.give(B, packet, Offload::None);
        }
        world.run_for(ms(500));
    }
    let mut sent: Vec<_> = world.sent.iter().filter(|sent| sent.from == B).collect();
    let count = sent.len();
    sent.sort_by_key(|sent| sent.datagram.destination);
    sent.dedup_by_key(|sent| sent.datagram.destination);
    assert!((2000..ABSENT as usize).contains(&count), "{count}");
    assert_eq!(sent.len(), count, "another initiation to the same peer within a second");
}
