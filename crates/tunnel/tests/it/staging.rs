//! Staged packets: bounded, in order, and counted when they are dropped.

use weft_tunnel::{Change, DropReason, KeyTaken, Offload, Outbound, PeerConfig, PeerSettings, TunnelConfig};

use crate::sim::{A, B, C, Kind, MTU, PeerOptions, World, inner_v4, inner_v6, secs, tcp, udp};

const MAX_PACKETS: u64 = 128;

fn assert_nothing_waits(world: &World, node: usize) {
    let stats = world.nodes[node].stats();
    assert_eq!((stats.staged_bytes, stats.staged_segments), (0, 0));
    assert!(world.nodes[node].tunnel.peers().all(|peer| peer.staged_bytes == 0));
    assert!(!world.nodes[node].tunnel.has_ready_staged());
}

#[test]
fn the_oldest_of_more_than_128_packets_go_first() {
    let mut world = World::pair();
    for number in 1..=MAX_PACKETS + 7 {
        assert_eq!(world.send(A, B, number), Ok(Outbound::Staged));
        let waiting = number.min(MAX_PACKETS);
        assert_eq!(world.nodes[A].stats().staged_segments, waiting);
    }
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), 7);
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), (8..=MAX_PACKETS + 7).collect::<Vec<_>>());
    assert_nothing_waits(&world, A);
}

#[test]
fn the_oldest_of_more_than_256_kib_go_first_and_count_as_segments() {
    let mut world = World::pair();
    let payload: Vec<u8> = (0..60_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let offload = Offload::TcpSegmentation { segment_size: 1360 };
    let segments = 60_000_u64.div_ceil(1360);
    for sequence in 0..6 {
        let packet = tcp(inner_v4(A), inner_v4(B), sequence * 60_000, &payload);
        assert_eq!(world.give(A, packet, offload), Ok(Outbound::Staged));
        assert!(world.nodes[A].stats().staged_bytes <= 256 * 1024);
    }
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), 2 * segments);
    assert_eq!(world.nodes[A].stats().staged_segments, 4 * segments);
    world.run_for(secs(1));
    assert_nothing_waits(&world, A);
    assert_eq!(world.nodes[A].stats().sealed, 4 * segments);
    let packets = &world.nodes[B].packets;
    assert_eq!(packets.len() as u64, 4 * segments);
    let received: Vec<u8> = packets.iter().flat_map(|packet| packet[40..].to_vec()).collect();
    assert_eq!(received, payload.repeat(4));
    let first = u32::from_be_bytes(*packets[0][24..].first_chunk().unwrap());
    assert_eq!(first, 2 * 60_000);
    assert!(packets.iter().all(|packet| packet.len() <= usize::from(MTU)));
}

#[test]
fn packets_that_are_not_sealed_when_their_session_ends_wait_for_the_next_one() {
    let mut world = World::pair();
    world.flushes = false;
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert!(world.nodes[A].tunnel.has_ready_staged(), "the session is there");
    let (peer, now) = (world.nodes[B].public_key(), world.now);
    assert!(world.nodes[A].tunnel.apply(Change::EndSession(peer), now));
    world.flushes = true;
    world.run_for(secs(10));
    assert_eq!(world.nodes[B].numbers(), [1]);
    assert_nothing_waits(&world, A);
}

#[test]
fn super_packets_that_waited_and_packets_that_did_not_keep_their_order() {
    let mut world = World::pair();
    let offload = Offload::UdpSegmentation { segment_size: 1000 };
    let mut expected = Vec::new();
    for round in 0..20_u8 {
        let payload = vec![round; 3500];
        let packet = udp(inner_v6(A), inner_v6(B), &payload);
        world.give(A, packet, offload).unwrap();
        expected.extend([(round, 1000), (round, 1000), (round, 1000), (round, 500)]);
        world.run_for(std::time::Duration::from_millis(9));
    }
    world.run_for(secs(1));
    let received: Vec<_> = world.nodes[B].packets.iter().map(|p| (p[48], p.len() - 48)).collect();
    assert_eq!(received, expected);
}

#[test]
fn the_budget_of_all_peers_binds_each_of_them() {
    let budget = 64 * 1024;
    let mut world = World::with_config(3, TunnelConfig { mtu: MTU, staging_bytes: budget });
    for other in [B, C] {
        world.introduce(A, other, PeerOptions::default());
        world.introduce(other, A, PeerOptions::default());
    }
    world.cut.extend([(A, B), (A, C)]);
    let big = |other: usize, tag: u8| udp(inner_v4(A), inner_v4(other), &vec![tag; 1000]);
    for tag in 0..100 {
        world.give(A, big(B, tag), Offload::None).unwrap();
        let stats = world.nodes[A].stats();
        assert!(stats.staged_bytes <= budget && stats.staging_budget_bytes == budget);
    }
    // A single cause leaves a ninth of the budget to the others.
    let kept = (8 * budget / 1028).div_ceil(9);
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), (100 - kept) as u64);
    // C has no staged packet that could be dropped instead.
    world.give(A, big(C, 200), Offload::None).unwrap();
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), (101 - kept) as u64);
    assert_eq!(world.nodes[A].stats().staged_segments, kept as u64);

    world.cut.clear();
    world.run_for(secs(7));
    let tags: Vec<u8> = world.nodes[B].packets.iter().map(|packet| packet[28]).collect();
    assert_eq!(tags, (100 - kept as u8..100).collect::<Vec<_>>());
    assert_nothing_waits(&world, A);
    world.give(A, big(C, 201), Offload::None).unwrap();
    world.run_for(secs(7));
    assert_eq!(world.nodes[C].packets.len(), 1);
}

/// Creates a world in which A forwards packets of C to B, and may stage `budget` bytes.
fn world_with_forwarding(budget: usize) -> World {
    let mut world = World::with_config(3, TunnelConfig { mtu: MTU, staging_bytes: budget });
    for other in [B, C] {
        world.introduce(A, other, PeerOptions::default());
        world.introduce(other, A, PeerOptions::default());
    }
    world
}

fn forward(world: &mut World) {
    let packet = udp(inner_v4(C), inner_v4(B), &[1; 972]);
    assert_eq!(world.give(A, packet, Offload::None), Ok(Outbound::Staged));
}

#[test]
fn where_others_fill_the_room_of_a_peer_a_newer_packet_takes_the_place_of_the_oldest() {
    let mut world = world_with_forwarding(16 << 20);
    (0..MAX_PACKETS).for_each(|_| forward(&mut world));
    world.send(A, B, 7).unwrap();
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), 1);
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [7], "B takes no packets of C from A");
}

#[test]
fn where_others_spend_the_budget_of_all_peers_they_do_not_make_room_for_a_newer_packet() {
    let mut world = world_with_forwarding(9000);
    (0..20).for_each(|_| forward(&mut world));
    let (staged, dropped) =
        (world.nodes[A].stats().staged_bytes, world.nodes[A].dropped(DropReason::StagingFull));
    world.give(A, udp(inner_v4(A), inner_v4(B), &[2; 1300]), Offload::None).unwrap();
    assert_eq!(world.nodes[A].stats().staged_bytes, staged);
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), dropped + 1);
}

#[test]
fn a_packet_that_is_larger_than_the_budget_is_dropped() {
    let mut world = World::with_config(2, TunnelConfig { mtu: MTU, staging_bytes: 1000 });
    world.introduce(A, B, PeerOptions::default());
    world.introduce(B, A, PeerOptions::default());
    let packet = udp(inner_v4(A), inner_v4(B), &[0; 3000]);
    world.give(A, packet, Offload::UdpSegmentation { segment_size: 1000 }).unwrap();
    assert_eq!(world.nodes[A].dropped(DropReason::StagingFull), 3);
    assert_nothing_waits(&world, A);
    world.run_for(secs(1));
    assert!(world.passes_both_ways(1), "but the handshake came about");
}

#[test]
fn a_peer_that_is_removed_takes_what_waited_with_it() {
    let mut world = World::pair();
    for number in 0..5 {
        world.send(A, B, number).unwrap();
    }
    let packet = udp(inner_v4(A), inner_v4(B), &[0; 3000]);
    world.give(A, packet, Offload::UdpSegmentation { segment_size: 1000 }).unwrap();
    let key = world.nodes[B].public_key();
    assert!(world.nodes[A].tunnel.remove_peer(&key));
    assert!(!world.nodes[A].tunnel.remove_peer(&key));
    assert_eq!(world.nodes[A].dropped(DropReason::PeerRemoved), 8);
    assert_nothing_waits(&world, A);
    assert_eq!(world.nodes[A].tunnel.poll_timeout(), None);
    assert_eq!(world.send(A, B, 9), Err(DropReason::NoPeer));
    world.run_for(secs(20));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    assert_eq!(world.nodes[A].dropped(DropReason::UnknownReceiverIndex), 1, "the answer came too late");

    world.introduce(A, B, PeerOptions::default());
    world.send(A, B, 10).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [10]);
}

#[test]
fn a_peer_that_is_removed_while_its_packets_are_ready_leaves_the_others_alone() {
    let mut world = World::hub();
    world.cut.insert((A, C));
    world.flushes = false;
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    world.send(A, C, 2).unwrap();
    assert!(world.nodes[A].tunnel.has_ready_staged());
    let key = world.nodes[B].public_key();
    assert!(world.nodes[A].tunnel.remove_peer(&key));
    world.flushes = true;
    world.cut.clear();
    assert!(world.nodes[A].tunnel.poll_timeout().is_some(), "C's timers go on");
    world.run_for(secs(6));
    assert_eq!(world.nodes[C].numbers(), [2]);
    assert!(world.nodes[B].numbers().is_empty());
    assert_nothing_waits(&world, A);
}

#[test]
fn packets_of_others_stay_ready_when_a_peer_is_removed() {
    let mut world = World::hub();
    world.flushes = false;
    for other in [B, C] {
        world.send(A, other, 2).unwrap();
    }
    world.run_for(secs(1));
    let key = world.nodes[B].public_key();
    assert!(world.nodes[A].tunnel.remove_peer(&key));
    world.flushes = true;
    world.run_for(secs(1));
    assert_eq!((world.nodes[B].numbers(), world.nodes[C].numbers()), (vec![], vec![2]));
}

#[test]
fn a_peer_that_is_there_already_is_refused_and_nothing_changes() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    let config = PeerConfig {
        public_key: world.nodes[B].public_key(),
        endpoint: None,
        allowed_ips: Vec::new(),
        settings: PeerSettings::default(),
    };
    let now = world.now;
    assert_eq!(world.nodes[A].tunnel.insert_peer(config, now), Err(KeyTaken));
    world.run_for(secs(1));
    assert!(world.passes_both_ways(2));
}
