//! Invalid input: every drop has its reason, and no other effect.

use std::net::SocketAddr;

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;
use weft_tunnel::{
    DropReason, Ecn, Event, Offload, Outbound, PeerConfig, PeerSettings, PlainSlab, PresharedKey, PrivateKey,
    ip,
};

use crate::forge::remake_mac1;
use crate::sim::{
    A, B, C, Datagram, Kind, PeerOptions, World, inner_v4, inner_v6, ms, number_of, numbered, secs, udp,
};

fn attacker() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 66], 666))
}

/// Delivers a datagram that has to be refused, and checks that nothing visible changes but the drop counter.
fn refused(world: &mut World, to: usize, mut datagram: Datagram) -> DropReason {
    datagram.source = attacker();
    let look = |world: &World| {
        let node = &world.nodes[to];
        let peers: Vec<_> = node.tunnel.peers().map(|peer| format!("{peer:?}")).collect();
        let stats = format!("{:?}", node.stats());
        (peers, stats, node.tunnel.poll_timeout(), node.events.len(), node.packets.len(), world.sent.len())
    };
    let before = look(world);
    let reason = world.deliver(to, &datagram).unwrap_err();
    assert_eq!(look(world), before, "{reason:?}");
    reason
}

/// Returns a message of every kind that was lost on its way to a node: the world in which the node would
/// accept it, the node, and the message.
fn every_kind() -> Vec<(World, usize, Datagram)> {
    let mut worlds = Vec::new();

    let mut world = World::settled_pair();
    world.run_for(secs(200));
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let initiation = world.last_sent(A, Kind::Initiation);
    worlds.push((world, B, initiation));

    let mut world = World::pair();
    world.cut.insert((B, A));
    world.send(A, B, 1).unwrap();
    world.run_for(ms(100));
    let response = world.last_sent(B, Kind::Response);
    worlds.push((world, A, response));

    let mut world = World::pair();
    world.cut.insert((B, A));
    world.send(A, B, 1).unwrap();
    let initiation = world.last_sent(A, Kind::Initiation);
    world.run_for(secs(1));
    for _ in 0..1000 {
        let _ = world.deliver(B, &initiation);
    }
    let cookie = world.last_sent(B, Kind::Cookie);
    worlds.push((world, A, cookie));

    let mut world = World::settled_pair();
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let data = world.last_sent(A, Kind::Data);
    worlds.push((world, B, data));
    worlds
}

#[test]
fn messages_of_any_wrong_length_are_refused() {
    for (mut world, to, message) in every_kind() {
        for len in 0..=200 {
            if len == message.bytes.len() {
                continue;
            }
            let mut wrong = message.clone();
            wrong.bytes.resize(len, 0);
            let reason = refused(&mut world, to, wrong);
            let expected = match message.kind() {
                Kind::Data if len >= 32 => DropReason::InvalidTag,
                _ => DropReason::MalformedDatagram,
            };
            assert_eq!(reason, expected, "{:?} of {len} bytes", message.kind());
        }
        for len in [1500, 9000, 65_507] {
            let mut wrong = message.clone();
            wrong.bytes.resize(len, 0);
            refused(&mut world, to, wrong);
        }
        assert!(world.deliver(to, &message).is_ok(), "and the right one is still taken");
    }
}

#[test]
fn messages_of_unknown_types_are_refused() {
    for (mut world, to, message) in every_kind() {
        for kind in [0, 5, 6, 255] {
            let mut wrong = message.clone();
            wrong.bytes[0] = kind;
            assert_eq!(refused(&mut world, to, wrong), DropReason::MalformedDatagram);
        }
        for reserved in 1..4 {
            let mut wrong = message.clone();
            wrong.bytes[reserved] = 1;
            assert_eq!(refused(&mut world, to, wrong), DropReason::MalformedDatagram);
        }
    }
}

#[test]
fn a_message_with_any_bit_flipped_is_refused() {
    for (mut world, to, message) in every_kind() {
        // mac2 counts under load only.
        let covered = match message.kind() {
            Kind::Initiation | Kind::Response => message.bytes.len() - 16,
            _ => message.bytes.len(),
        };
        for bit in 0..covered * 8 {
            let mut wrong = message.clone();
            wrong.bytes[bit / 8] ^= 1 << (bit % 8);
            let reason = refused(&mut world, to, wrong);
            let expected = match (message.kind(), bit / 8) {
                (_, 0..4) => DropReason::MalformedDatagram,
                (Kind::Response, 8..12) => DropReason::UnknownReceiverIndex,
                (Kind::Initiation | Kind::Response, _) => DropReason::InvalidMac,
                (Kind::Data | Kind::Cookie, 4..8) => DropReason::UnknownReceiverIndex,
                // The flipped bit makes the counter of an earlier message.
                (Kind::Data, 8) if reason == DropReason::Replayed => DropReason::Replayed,
                _ => DropReason::InvalidTag,
            };
            assert_eq!(reason, expected, "{:?}, bit {bit}", message.kind());
        }
        assert!(world.deliver(to, &message).is_ok(), "and the right one is still taken");
    }
}

#[test]
fn a_forged_handshake_with_a_valid_mac1_is_refused() {
    // A few forgeries in each world: after more of them the sender would have to prove its address.
    for (offset, (mut world, to, message)) in
        (0..8).flat_map(|offset| every_kind().into_iter().map(move |kind| (offset, kind)))
    {
        let (from_byte, to_byte) = match message.kind() {
            // The sender index is bound by mac1 alone.
            Kind::Initiation => (8, 116),
            Kind::Response => (8, 60),
            _ => continue,
        };
        let receiver = world.nodes[to].public_key();
        for byte in (from_byte + offset..to_byte).step_by(8) {
            let mut forged = message.clone();
            forged.bytes[byte] ^= 0x10;
            remake_mac1(&mut forged, &receiver);
            // Far enough apart to be no load.
            world.run_for(ms(10));
            let reason = refused(&mut world, to, forged);
            let expected = match (message.kind(), byte) {
                (Kind::Initiation, 8..88) => DropReason::UnknownPeer,
                (Kind::Response, 8..12) => DropReason::UnknownReceiverIndex,
                _ => DropReason::InvalidTag,
            };
            assert_eq!(reason, expected, "{:?}, byte {byte}", message.kind());
        }
        assert!(world.deliver(to, &message).is_ok(), "and the right one is still taken");
    }
}

#[test]
fn replayed_messages_are_refused() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    let initiation = world.last_sent(A, Kind::Initiation);
    let response = world.last_sent(B, Kind::Response);
    let keepalive = world.last_sent(A, Kind::Keepalive);
    let data = world.last_sent(A, Kind::Data);
    for _ in 0..3 {
        assert_eq!(refused(&mut world, B, initiation.clone()), DropReason::ReplayedHandshake);
        assert_eq!(refused(&mut world, A, response.clone()), DropReason::UnexpectedHandshake);
        assert_eq!(refused(&mut world, B, keepalive.clone()), DropReason::Replayed);
        assert_eq!(refused(&mut world, B, data.clone()), DropReason::Replayed);
    }
    assert_eq!(world.nodes[B].numbers(), [1]);
    assert_eq!(world.nodes[B].dropped(DropReason::Replayed), 6);
}

#[test]
fn data_older_than_the_replay_window_is_refused() {
    let mut world = World::settled_pair();
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let old = world.last_sent(A, Kind::Data);
    world.cut.clear();
    for number in 2..1100 {
        world.send(A, B, number).unwrap();
    }
    world.run_for(secs(1));
    assert_eq!(refused(&mut world, B, old), DropReason::Replayed);
}

#[test]
fn nothing_that_is_forged_or_replayed_is_answered() {
    // A has every reason of boringtun's to send: an old session that A initiated, data sent and received.
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    world.run_for(secs(1));
    let initiation = world.last_sent(A, Kind::Initiation);
    let response = world.last_sent(B, Kind::Response);
    let keepalive = world.last_sent(A, Kind::Keepalive);
    let forgeries = |world: &World| -> Vec<(usize, Datagram)> {
        let mut cookie = Datagram { bytes: vec![7; 64], ..response.clone() };
        cookie.bytes[..4].copy_from_slice(&[3, 0, 0, 0]);
        cookie.bytes[4..8].copy_from_slice(&response.bytes[8..12]);
        let mut bad_response = response.clone();
        bad_response.bytes[20] ^= 1;
        remake_mac1(&mut bad_response, &world.nodes[A].public_key());
        let mut bad_initiation = initiation.clone();
        bad_initiation.bytes[100] ^= 1;
        remake_mac1(&mut bad_initiation, &world.nodes[B].public_key());
        vec![
            (A, cookie),
            (A, response.clone()),
            (A, bad_response),
            (B, initiation.clone()),
            (B, bad_initiation),
            (B, keepalive.clone()),
        ]
    };
    for at in [10, 20, 50, 100, 119, 125, 150, 170, 179, 181, 190, 300, 540, 542, 600, 700] {
        world.run_until(secs(at) - ms(100));
        if at <= 50 {
            world.send(A, B, at).unwrap();
            world.run_for(ms(50));
            world.send(B, A, at).unwrap();
            world.run_for(ms(50));
        }
        for (to, forged) in forgeries(&world) {
            refused(&mut world, to, forged);
        }
    }
    assert_eq!(world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation), 1);
}

#[test]
fn messages_to_no_peer_are_refused() {
    for (mut world, to, message) in every_kind() {
        let at = match message.kind() {
            Kind::Initiation => continue,
            Kind::Response => 8,
            _ => 4,
        };
        let mut wrong = message.clone();
        wrong.bytes[at + 2] ^= 0xff;
        remake_mac1_of_handshake(&mut wrong, &world, to);
        assert_eq!(refused(&mut world, to, wrong), DropReason::UnknownReceiverIndex);
    }
}

fn remake_mac1_of_handshake(datagram: &mut Datagram, world: &World, to: usize) {
    if datagram.kind() == Kind::Response {
        remake_mac1(datagram, &world.nodes[to].public_key());
    }
}

#[test]
fn a_handshake_for_another_key_has_a_wrong_mac1() {
    let mut world = World::of(3);
    world.introduce(A, B, PeerOptions::default());
    world.introduce(C, A, PeerOptions::default());
    world.send(A, B, 1).unwrap();
    let initiation = world.last_sent(A, Kind::Initiation);
    assert_eq!(refused(&mut world, C, initiation), DropReason::InvalidMac);
}

#[test]
fn a_handshake_from_an_unknown_key_is_not_answered() {
    let mut world = World::of(2);
    world.introduce(A, B, PeerOptions::default());
    world.send(A, B, 1).unwrap();
    world.run_for(secs(100));
    let begun = world.count(A, Kind::Initiation) as u64;
    assert_eq!(world.nodes[B].dropped(DropReason::UnknownPeer), begun);
    assert!(world.sent.iter().all(|sent| sent.from == A));
}

#[test]
fn a_preshared_key_that_only_one_end_has_or_that_differs_makes_no_session() {
    let key = || Some(PresharedKey::generate().unwrap());
    for (a, b) in [(key(), None), (None, key()), (key(), key())] {
        let options = |preshared_key| PeerOptions { preshared_key, ..Default::default() };
        let mut world = World::pair_with(options(a), options(b));
        world.send(A, B, 1).unwrap();
        world.run_for(secs(100));
        assert_eq!(world.nodes[A].dropped(DropReason::InvalidTag), world.count(B, Kind::Response) as u64);
        assert_eq!((world.nodes[A].stats().handshakes, world.nodes[B].stats().handshakes), (0, 0));
        let failed = Event::HandshakeFailed { peer: world.nodes[B].public_key() };
        assert_eq!(world.nodes[A].events.last(), Some(&failed));
        assert!(!world.nodes[A].events.iter().any(|event| matches!(event, Event::HandshakeComplete { .. })));
        assert_eq!(world.nodes[A].dropped(DropReason::HandshakeTimeout), 1);
    }
}

#[test]
fn a_preshared_key_that_both_ends_have_makes_a_session() {
    let options =
        PeerOptions { preshared_key: Some(PresharedKey::generate().unwrap()), ..Default::default() };
    let mut world = World::pair_with(options.clone(), options);
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert!(world.passes_both_ways(2));
}

#[test]
fn packets_for_no_peer_and_malformed_packets_stay_here() {
    let mut world = World::settled_pair();
    let stranger = "192.168.77.1".parse().unwrap();
    let packet = udp(inner_v4(A), stranger, &[0; 10]);
    assert_eq!(world.give(A, packet, Offload::None), Err(DropReason::NoPeer));
    for packet in [vec![], vec![0x45; 19], vec![0; 40], vec![0x60; 39]] {
        assert_eq!(world.give(A, packet, Offload::None), Err(DropReason::MalformedPacket));
    }
    assert_eq!(world.nodes[A].dropped(DropReason::NoPeer), 1);
    assert_eq!(world.nodes[A].dropped(DropReason::MalformedPacket), 4);
}

/// Kernels and programs look for neighbours and routers on every device.
#[test]
fn packets_of_the_link_are_told_apart_from_those_for_no_peer() {
    let mut world = World::settled_pair();
    let of_link =
        ["224.0.0.22", "239.255.255.250", "255.255.255.255", "169.254.1.1", "ff02::2", "ff02::16", "fe80::1"];
    for to in of_link.map(|to| to.parse().unwrap()) {
        let from = if std::net::IpAddr::is_ipv4(&to) { inner_v4(A) } else { inner_v6(A) };
        assert_eq!(world.give(A, udp(from, to, &[0; 10]), Offload::None), Err(DropReason::LinkLocal), "{to}");
    }
    assert_eq!(world.nodes[A].dropped(DropReason::NoPeer), 0);
    assert_eq!(world.nodes[A].dropped(DropReason::LinkLocal), of_link.len() as u64);
}

#[test]
fn an_inner_source_that_is_not_the_peers_own_goes_no_further() {
    let mut world = World::settled_pair();
    for source in [inner_v4(C), inner_v4(B), inner_v6(C)] {
        let destination = if source.is_ipv4() { inner_v4(B) } else { inner_v6(B) };
        world.give(A, udp(source, destination, &[0; 10]), Offload::None).unwrap();
    }
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].dropped(DropReason::SourceNotAllowed), 3);
    assert!(world.nodes[B].packets.is_empty());
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1]);
}

#[test]
fn congestion_marked_outside_is_carried_inside_or_drops_what_cannot_carry_it() {
    let mut world = World::settled_pair();
    world.cut.insert((A, B));
    for (number, inner, carried) in
        [(2, Ecn::NotEct, false), (4, Ecn::Ect0, true), (6, Ecn::Ect1, true), (8, Ecn::Ce, true)]
    {
        let mut packet = numbered(A, B, number);
        packet[1] = inner as u8;
        ip::write_ipv4_checksum(&mut packet, 20);
        world.give(A, packet, Offload::None).unwrap();
        let mut datagram = world.last_sent(A, Kind::Data);
        assert_eq!(datagram.ecn, inner, "what the inner packet says is copied outside");
        datagram.ecn = Ecn::Ce;
        match world.deliver(B, &datagram) {
            Ok(Some(packet)) => {
                assert!(carried);
                assert_eq!(packet[1], Ecn::Ce as u8);
                assert_eq!(number_of(&packet), number);
                assert_eq!(ip::fold(ip::checksum_add(0, &packet[..20])), 0xffff);
            }
            other => {
                assert_eq!(other, Err(DropReason::CongestionNotEct));
                assert!(!carried);
            }
        }
    }
}

/// A peer that can send any bytes.
struct Raw {
    tunn: Tunn,
    address: SocketAddr,
}

impl Raw {
    /// Creates a peer of A, with a session that A has not used yet.
    fn of(world: &mut World) -> Self {
        let private = [0x42; 32];
        let public_key = PrivateKey::from_bytes(private).public_key();
        let address = SocketAddr::from(([198, 51, 100, 42], 4242));
        world.insert(
            A,
            PeerConfig {
                public_key,
                endpoint: Some(address),
                allowed_ips: vec![inner_v4(B).into(), inner_v6(B).into()],
                settings: PeerSettings::default(),
            },
        );
        let a = x25519::PublicKey::from(*world.nodes[A].public_key().as_bytes());
        let tunn = Tunn::new(x25519::StaticSecret::from(private), a, None, None, 7, None);
        let mut raw = Self { tunn, address };
        let mut buffer = [0; 200];
        let TunnResult::WriteToNetwork(initiation) = raw.tunn.format_handshake_initiation(&mut buffer, false)
        else {
            panic!("no initiation")
        };
        let initiation = initiation.to_vec();
        assert_eq!(raw.send(world, &initiation), Ok(None));
        let response = world.last_sent(A, Kind::Response);
        let TunnResult::WriteToNetwork(_) = raw.tunn.decapsulate(None, &response.bytes, &mut buffer) else {
            panic!("no session")
        };
        raw
    }

    fn send(&self, world: &mut World, bytes: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
        let datagram = Datagram {
            source: self.address,
            destination: world.nodes[A].address,
            ecn: Ecn::NotEct,
            bytes: bytes.to_vec(),
        };
        world.deliver(A, &datagram)
    }

    fn send_inner(&mut self, world: &mut World, inner: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
        let mut buffer = vec![0; inner.len() + 200];
        let TunnResult::WriteToNetwork(message) = self.tunn.encapsulate(inner, &mut buffer) else {
            panic!("no session")
        };
        let message = message.to_vec();
        self.send(world, &message)
    }
}

fn malformed_inner() -> Vec<Vec<u8>> {
    let good = udp(inner_v4(B), inner_v4(A), &[1; 20]);
    let with = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet
    };
    let mut long_v6 = udp(inner_v6(B), inner_v6(A), &[1; 20]);
    long_v6[5] += 1;
    vec![
        vec![0],
        vec![0; 1000],
        vec![0xff; 64],
        good[..19].to_vec(),
        good[..40].to_vec(),
        with(0, 0x55),
        with(0, 0x44),
        with(0, 0x4f),
        with(3, 0),
        with(3, 19),
        with(3, 49),
        with(2, 0xff),
        long_v6[..39].to_vec(),
        long_v6,
    ]
}

#[test]
fn inner_packets_that_are_malformed_go_no_further_but_are_authentic() {
    for inner in malformed_inner() {
        let mut world = World::of(1);
        let mut raw = Raw::of(&mut world);
        assert_eq!(
            world.give(A, udp(inner_v4(A), inner_v4(B), &[0; 9]), Offload::None),
            Ok(Outbound::Staged)
        );
        raw.address.set_port(9);
        let before = world.nodes[A].stats().clone();
        assert_eq!(raw.send_inner(&mut world, &inner), Err(DropReason::MalformedPlaintext), "{inner:x?}");
        let key = PrivateKey::from_bytes([0x42; 32]).public_key();
        assert_eq!(world.nodes[A].peer(&key).endpoint, Some(raw.address), "{inner:x?}");
        let stats = world.nodes[A].stats();
        assert_eq!((stats.opened, stats.keepalives_received), (before.opened, before.keepalives_received));
        assert_eq!((stats.handshakes, stats.staged_segments), (1, 0), "it confirmed the session");
        assert_eq!(world.count(A, Kind::Data), 1);
    }
}

#[test]
fn padding_of_any_length_is_cut_off() {
    let mut world = World::of(1);
    let mut raw = Raw::of(&mut world);
    let packet = udp(inner_v4(B), inner_v4(A), &[3; 21]);
    for padding in [0, 1, 15, 16, 1000] {
        let mut padded = packet.clone();
        padded.resize(packet.len() + padding, 0);
        assert_eq!(raw.send_inner(&mut world, &padded), Ok(Some(packet.clone())));
    }
}

#[test]
fn data_that_is_longer_than_the_room_for_it_is_refused_and_may_come_again() {
    let mut world = World::settled_pair();
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let data = world.last_sent(A, Kind::Data);
    world.nodes[B].plain = PlainSlab::new(data.bytes.len() - 1);
    assert_eq!(refused(&mut world, B, data.clone()), DropReason::TruncatedDatagram);
    world.nodes[B].plain = PlainSlab::new(data.bytes.len());
    assert!(world.deliver(B, &data).is_ok());
    assert_eq!(world.nodes[B].numbers(), [1]);
}
