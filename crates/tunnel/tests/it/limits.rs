//! Peers with a rate limit: which packets pass, which are dropped, and that other peers are not affected.

use std::time::Duration;

use weft_tunnel::{Change, DropReason, Offload, Outbound, PeerLimits, Rate};

use crate::sim::{A, B, C, Kind, PeerOptions, World, inner_v4, ms, secs, tcp, udp};

/// One byte per microsecond, in bits per second.
const RATE: u64 = 8_000_000;
/// Burst at that rate, in bytes.
const BURST: usize = 500_000;

fn rate() -> Option<Rate> {
    Rate::from_bits_per_second(RATE)
}

fn limit(world: &mut World, node: usize, peer: usize, limits: PeerLimits) {
    let (now, peer) = (world.now, world.nodes[peer].public_key());
    assert!(world.nodes[node].tunnel.apply(Change::Limits { peer, limits }, now));
}

/// Creates a world with A between B and C, with sessions.
fn settled_hub() -> World {
    let mut world = World::hub();
    for peer in [B, C] {
        world.send(A, peer, 0).unwrap();
        world.run_for(secs(1));
        world.send(peer, A, 0).unwrap();
    }
    world.run_for(secs(30));
    for node in &mut world.nodes {
        node.packets.clear();
    }
    world.sent.clear();
    world
}

/// Sends a thousand bytes in each of these directions every quarter of a millisecond: four times [`RATE`].
fn send_for(world: &mut World, time: Duration, ways: &[(usize, usize)]) {
    let end = world.elapsed() + time;
    while world.elapsed() < end {
        for &(from, to) in ways {
            let _ = world.give(from, udp(inner_v4(from), inner_v4(to), &[7; 972]), Offload::None);
        }
        world.run_for(Duration::from_micros(250));
    }
    world.run_for(ms(100));
}

/// Returns the bytes of the inner packets that `node` opened from `from`, each of a thousand.
fn received(world: &World, node: usize, from: usize) -> usize {
    let source = match inner_v4(from) {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(_) => panic!("not an IPv4 address"),
    };
    world.nodes[node].packets.iter().filter(|packet| packet[12..16] == source).map(Vec::len).sum()
}

#[test]
fn a_limit_to_one_peer_is_exact_and_does_not_touch_the_other() {
    let mut world = settled_hub();
    limit(&mut world, A, B, PeerLimits { to_peer: rate(), from_peer: None });
    send_for(&mut world, secs(1), &[(A, B), (A, C), (B, A), (C, A)]);
    let passed = received(&world, B, A);
    assert!(passed.abs_diff(BURST + 1_000_000) <= 1000, "{passed}");
    let dropped = world.nodes[A].dropped(DropReason::OverRateToPeer);
    assert_eq!(passed + dropped as usize * 1000, 4_000_000);
    assert_eq!(world.nodes[A].tunnel.drops().total(), dropped);
    let b = world.nodes[B].public_key();
    assert_eq!(
        (world.nodes[A].peer(&b).over_rate_to_peer, world.nodes[A].peer(&b).over_rate_from_peer),
        (dropped, 0)
    );
    for (node, from) in [(C, A), (A, B), (A, C)] {
        assert_eq!(received(&world, node, from), 4_000_000, "from {from} to {node}");
    }
}

#[test]
fn a_limit_from_one_peer_is_exact_and_does_not_touch_the_other() {
    let mut world = settled_hub();
    limit(&mut world, A, B, PeerLimits { to_peer: None, from_peer: rate() });
    send_for(&mut world, secs(1), &[(A, B), (A, C), (B, A), (C, A)]);
    let passed = received(&world, A, B);
    assert!(passed.abs_diff(BURST + 1_000_000) <= 1000, "{passed}");
    let dropped = world.nodes[A].dropped(DropReason::OverRateFromPeer);
    assert_eq!(passed + dropped as usize * 1000, 4_000_000);
    let b = world.nodes[B].public_key();
    assert_eq!(world.nodes[A].peer(&b).over_rate_from_peer, dropped);
    for (node, from) in [(C, A), (B, A), (A, C)] {
        assert_eq!(received(&world, node, from), 4_000_000, "from {from} to {node}");
    }
}

#[test]
fn a_super_packet_counts_with_the_headers_of_all_its_segments() {
    let mut world = settled_hub();
    limit(&mut world, A, B, PeerLimits { to_peer: rate(), from_peer: None });
    let offload = Offload::TcpSegmentation { segment_size: 1380 };
    let send = |world: &mut World| {
        let packet = tcp(inner_v4(A), inner_v4(B), 1, &[7; 45 * 1380]);
        world.give(A, packet, offload)
    };
    let each = 45 * (1380 + 40);
    let at_once = BURST.div_ceil(each);
    for _ in 0..at_once {
        assert_eq!(send(&mut world), Ok(Outbound::Sealed), "something was left");
    }
    assert_eq!(send(&mut world), Err(DropReason::OverRateToPeer));
    assert_eq!(world.nodes[A].dropped(DropReason::OverRateToPeer), 45);
    let owed = at_once * each - BURST;
    world.run_for(Duration::from_micros(owed as u64));
    assert_eq!(send(&mut world), Err(DropReason::OverRateToPeer));
    world.run_for(Duration::from_micros(1));
    assert_eq!(send(&mut world), Ok(Outbound::Sealed));
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].packets.len(), (at_once + 1) * 45);
}

#[test]
fn limits_come_and_go_while_sessions_stay() {
    let mut world = settled_hub();
    let limits = PeerLimits { to_peer: rate(), from_peer: rate() };
    limit(&mut world, A, B, limits);
    send_for(&mut world, ms(200), &[(A, B), (B, A)]);
    assert!(world.nodes[A].dropped(DropReason::OverRateToPeer) > 0);
    assert!(world.nodes[A].dropped(DropReason::OverRateFromPeer) > 0);
    limit(&mut world, A, B, PeerLimits { from_peer: None, ..limits });
    let b = world.nodes[B].public_key();
    assert!(world.nodes[A].peer(&b).over_rate_to_peer > 0, "what stays goes on counting");
    limit(&mut world, A, B, PeerLimits::default());
    let before = world.nodes[A].tunnel.drops().total();
    send_for(&mut world, ms(200), &[(A, B), (B, A)]);
    assert_eq!(world.nodes[A].tunnel.drops().total(), before);
    assert_eq!(world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation), 0);

    let (now, stranger) = (world.now, world.nodes[A].public_key());
    assert!(!world.nodes[A].tunnel.apply(Change::Limits { peer: stranger, limits }, now));
}

#[test]
fn a_limit_holds_up_neither_handshakes_nor_keepalives_and_counts_a_packet_that_waits_once() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(5), ..Default::default() }, PeerOptions::default());
    let slow = Rate::from_bits_per_second(1);
    limit(&mut world, A, B, PeerLimits { to_peer: slow, from_peer: slow });
    limit(&mut world, B, A, PeerLimits { to_peer: slow, from_peer: slow });
    // All packets together are less than the burst, but more than half of it.
    for _ in 0..40 {
        let packet = udp(inner_v4(A), inner_v4(B), &[7; 1172]);
        assert_eq!(world.give(A, packet, Offload::None), Ok(Outbound::Staged));
    }
    world.run_for(secs(300));
    assert_eq!(world.nodes[B].packets.len(), 40);
    assert!(world.nodes[A].stats().handshakes > 1 && world.nodes[B].stats().keepalives_received > 10);
}
