//! Packets that are refused are answered by ICMP, and the answers are counted.

use std::net::IpAddr;

use weft_tunnel::{Change, DropReason, Offload, Outbound, ip};

use crate::sim::{A, B, C, DELAY, Kind, PeerOptions, World, inner_v4, inner_v6, secs, tcp, udp};

/// A node that is no peer of any other.
const NOBODY: usize = 9;

/// Fields of an ICMP error: source, destination, type and code, MTU, and the length of the packet that it
/// quotes.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    by: IpAddr,
    to: IpAddr,
    kind: (u8, u8),
    mtu: u32,
    quoted_len: usize,
}

fn answers(world: &mut World, node: usize) -> Vec<Said> {
    let tunnel = &mut world.nodes[node].tunnel;
    let mut said = Vec::new();
    assert_eq!(tunnel.has_answers(), tunnel.stats().icmp_sent > 0);
    while let Some(answer) = tunnel.pop_answer() {
        let header = ip::IpHeader::parse(&answer).unwrap();
        let icmp = &answer[header.header_len..];
        let quote = &icmp[8..];
        let (mtu, quoted_len) = if header.source.is_ipv4() {
            (u32::from(u16::from_be_bytes([icmp[6], icmp[7]])), u16::from_be_bytes([quote[2], quote[3]]))
        } else {
            (
                u32::from_be_bytes(*icmp[4..].first_chunk().unwrap()),
                40 + u16::from_be_bytes([quote[4], quote[5]]),
            )
        };
        said.push(Said {
            by: header.source,
            to: header.destination,
            kind: (icmp[0], icmp[1]),
            mtu,
            quoted_len: quoted_len.into(),
        });
    }
    assert!(!tunnel.has_answers());
    said
}

fn unreachable(from: usize, to: usize, quoted_len: usize) -> [Said; 2] {
    [(inner_v4(from), inner_v4(to), (3, 1)), (inner_v6(from), inner_v6(to), (1, 3))]
        .map(|(from, to, kind)| Said { by: to, to: from, kind, mtu: 0, quoted_len })
}

#[test]
fn an_address_that_no_peer_has_is_unreachable() {
    let mut world = World::pair();
    let v4 = udp(inner_v4(A), inner_v4(NOBODY), &[1; 20]);
    let v6 = udp(inner_v6(A), inner_v6(NOBODY), &[1; 0]);
    assert_eq!((v4.len(), v6.len()), (48, 48));
    for packet in [v4, v6] {
        assert_eq!(world.give(A, packet, Offload::None), Err(DropReason::NoPeer));
    }
    assert_eq!(answers(&mut world, A), unreachable(A, NOBODY, 48));
    assert_eq!(world.nodes[A].dropped(DropReason::NoPeer), 2);
    assert_eq!(world.nodes[A].stats().icmp_sent, 2);
}

#[test]
fn a_peer_without_a_known_endpoint_is_unreachable() {
    let mut world = World::of(2);
    world.introduce(A, B, PeerOptions { hides_endpoint: true, ..PeerOptions::default() });
    for packet in [udp(inner_v4(A), inner_v4(B), &[1; 20]), udp(inner_v6(A), inner_v6(B), &[])] {
        assert_eq!(world.give(A, packet, Offload::None), Err(DropReason::NoEndpoint));
    }
    assert_eq!(answers(&mut world, A), unreachable(A, B, 48));
}

#[test]
fn a_scan_gets_few_answers_and_all_its_packets_are_counted() {
    let mut world = World::of(1);
    for _ in 0..1000 {
        let _ = world.give(A, udp(inner_v4(A), inner_v4(NOBODY), &[]), Offload::None);
    }
    let count = answers(&mut world, A).len() as u64;
    assert!((1..=32).contains(&count), "{count} answers");
    let stats = world.nodes[A].stats();
    assert_eq!((stats.icmp_sent, stats.icmp_suppressed), (count, 1000 - count));
    assert_eq!(world.nodes[A].dropped(DropReason::NoPeer), 1000);
    world.run_for(secs(1));
    let _ = world.give(A, udp(inner_v4(A), inner_v4(NOBODY), &[]), Offload::None);
    assert_eq!(answers(&mut world, A).len(), 1);
}

/// Creates a pair with a session, in which A has learnt that the path to B carries 1400 bytes.
fn over_a_small_path() -> World {
    let mut world = World::settled_pair();
    world.send(A, B, 0).unwrap();
    world.run_for(DELAY * 2);
    let (peer, now) = (world.nodes[A].last_path_peer.unwrap(), world.now);
    world.nodes[A].tunnel.limit_path(peer, 1400, now);
    assert_eq!(world.nodes[A].tunnel.peers().next().unwrap().path_limit, Some(1340));
    world
}

/// Builds a UDP packet of `len` bytes, with DF set over IPv4.
fn of_len(from: IpAddr, to: IpAddr, len: usize) -> Vec<u8> {
    let headers = if from.is_ipv4() { 28 } else { 48 };
    udp(from, to, &vec![7; len - headers])
}

#[test]
fn what_the_path_does_not_carry_is_answered_with_what_it_does() {
    let mut world = over_a_small_path();
    for (from, to, kind) in [(inner_v4(A), inner_v4(B), (3, 4)), (inner_v6(A), inner_v6(B), (2, 0))] {
        let before = world.nodes[B].packets.len();
        assert_eq!(world.give(A, of_len(from, to, 1340), Offload::None), Ok(Outbound::Sealed));
        // Padding does not exceed the path either: IPv4 and UDP headers, and 32 bytes of the data message.
        let longest = world.sent.iter().map(|sent| sent.datagram.bytes.len()).max().unwrap();
        assert!(longest + 28 <= 1400, "{longest}");
        assert_eq!(world.give(A, of_len(from, to, 1341), Offload::None), Err(DropReason::PacketTooBig));
        let said = Said { by: to, to: from, kind, mtu: 1340, quoted_len: 1341 };
        assert_eq!(answers(&mut world, A), [said]);
        world.run_for(secs(1));
        assert_eq!(world.nodes[B].packets.len(), before + 1);
    }
}

#[test]
fn packets_are_padded_to_16_bytes_as_far_as_the_path_carries() {
    for (mut world, limit) in [(World::settled_pair(), 1420), (over_a_small_path(), 1340)] {
        for (len, padded) in [(1000, 1008), (1312, 1312), (1329, limit.min(1344)), (1340, limit.min(1344))] {
            let packet = of_len(inner_v4(A), inner_v4(B), len);
            assert_eq!(world.give(A, packet, Offload::None), Ok(Outbound::Sealed));
            let message = world.last_sent(A, Kind::Data).bytes;
            assert_eq!(message.len(), padded + 32, "{len} bytes, and the path carries {limit}");
        }
    }
}

#[test]
fn what_may_be_fragmented_is_sent_all_the_same() {
    let mut world = over_a_small_path();
    let mut packet = of_len(inner_v4(A), inner_v4(B), 1400);
    packet[6] = 0;
    ip::write_ipv4_checksum(&mut packet, 20);
    assert_eq!(world.give(A, packet, Offload::None), Ok(Outbound::Sealed));
    assert!(!world.nodes[A].tunnel.has_answers());
}

#[test]
fn a_super_packet_is_judged_and_quoted_by_its_segments() {
    let mut world = over_a_small_path();
    let payload = vec![5; 10_000];
    for (segment_size, result) in [(1300, Ok(Outbound::Sealed)), (1301, Err(DropReason::PacketTooBig))] {
        let packet = tcp(inner_v4(A), inner_v4(B), 1, &payload);
        assert_eq!(world.give(A, packet, Offload::TcpSegmentation { segment_size }), result);
    }
    assert_eq!(world.nodes[A].dropped(DropReason::PacketTooBig), 8);
    let said = Said { by: inner_v4(B), to: inner_v4(A), kind: (3, 4), mtu: 1340, quoted_len: 1341 };
    assert_eq!(answers(&mut world, A), [said]);
}

#[test]
fn no_path_is_taken_to_carry_less_than_every_link_of_ipv6() {
    let mut world = over_a_small_path();
    let (peer, now) = (world.nodes[A].last_path_peer.unwrap(), world.now);
    for outer_mtu in [1000, 68] {
        world.nodes[A].tunnel.limit_path(peer, outer_mtu, now);
        for inner in [inner_v4, inner_v6] {
            let of_len = |len| of_len(inner(A), inner(B), len);
            assert_eq!(world.give(A, of_len(1280), Offload::None), Ok(Outbound::Sealed));
            assert_eq!(world.give(A, of_len(1281), Offload::None), Err(DropReason::PacketTooBig));
            assert_eq!(answers(&mut world, A)[0].mtu, 1280);
        }
    }
}

#[test]
fn a_path_is_tried_again_after_a_minute() {
    let mut world = over_a_small_path();
    let packet = of_len(inner_v4(A), inner_v4(B), 1420);
    assert_eq!(world.give(A, packet.clone(), Offload::None), Err(DropReason::PacketTooBig));
    world.run_for(secs(60));
    assert_eq!(world.give(A, packet, Offload::None), Ok(Outbound::Sealed));
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].packets.last().unwrap().len(), 1420);
}

#[test]
fn the_limit_of_one_peer_is_not_that_of_another() {
    let mut world = over_a_small_path();
    assert_eq!(world.nodes.len(), 2);
    let mut world3 = World::hub();
    for other in [B, C] {
        world3.send(A, other, 0).unwrap();
        world3.run_for(secs(1));
    }
    let (peer, now) = (world3.nodes[A].last_path_peer.unwrap(), world3.now);
    world3.nodes[A].tunnel.limit_path(peer, 1400, now);
    for (other, passes) in [(B, true), (C, false)] {
        let packet = of_len(inner_v4(A), inner_v4(other), 1400);
        assert_eq!(world3.give(A, packet, Offload::None).is_ok(), passes);
    }
    assert!(world.give(A, of_len(inner_v4(A), inner_v4(B), 1300), Offload::None).is_ok());
}

#[test]
fn what_is_known_of_a_path_is_forgotten_when_the_peer_moves() {
    let mut world = over_a_small_path();
    let peer = world.nodes[B].public_key();
    world.nodes[B].address = "198.51.100.7:51820".parse().unwrap();
    // B's data then asks for no source address.
    let now = world.now;
    let key = world.nodes[A].public_key();
    world.nodes[B].tunnel.apply(Change::PathChanged(key), now);
    world.send(B, A, 1).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.endpoint(A, B), Some(world.nodes[B].address));
    assert_eq!(world.nodes[A].peer(&peer).path_limit, None);
}
