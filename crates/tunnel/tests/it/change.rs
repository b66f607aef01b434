//! Changes to peers while packets move.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;
use weft_tunnel::{Change, DropReason, Outbound, PresharedKey, PrivateKey};

use crate::sim::{A, B, C, Kind, PeerOptions, World, inner_v4, inner_v6, ms, secs};

fn apply(world: &mut World, node: usize, change: Change) -> bool {
    let now = world.now;
    let applied = world.nodes[node].tunnel.apply(change, now);
    world.pump(node);
    applied
}

fn set_preshared_key(world: &mut World, node: usize, other: usize, key: &PresharedKey) {
    let peer = world.nodes[other].public_key();
    assert!(apply(world, node, Change::PresharedKey { peer, key: Some(key.clone()) }));
}

#[test]
fn a_new_preshared_key_loses_no_packet_and_counts_from_the_next_handshake_on() {
    let mut world = World::settled_pair();
    let key = PresharedKey::generate().unwrap();
    // In flight while it changes, both ways.
    world.send(A, B, 1).unwrap();
    world.send(B, A, 2).unwrap();
    set_preshared_key(&mut world, A, B, &key);
    world.send(A, B, 3).unwrap();
    set_preshared_key(&mut world, B, A, &key);
    for number in 4..200 {
        let (from, to) = if number % 2 == 0 { (B, A) } else { (A, B) };
        assert_eq!(world.send(from, to, number), Ok(Outbound::Sealed));
        world.run_for(secs(1));
    }
    assert_eq!(world.nodes[B].numbers(), (1..200).step_by(2).collect::<Vec<_>>());
    assert_eq!(world.nodes[A].numbers(), (2..200).step_by(2).collect::<Vec<_>>());
    assert_eq!(world.nodes[A].tunnel.drops().total() + world.nodes[B].tunnel.drops().total(), 0);
    assert_eq!(world.nodes[A].stats().handshakes, 2, "the session was renewed, with the new key");
    assert_eq!(world.count(A, Kind::Initiation), 1);
}

#[test]
fn ends_with_different_preshared_keys_go_on_until_their_session_ends() {
    let mut world = World::settled_pair();
    set_preshared_key(&mut world, A, B, &PresharedKey::generate().unwrap());
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1]);
    world.run_for(secs(200));
    assert_eq!(world.send(A, B, 2), Ok(Outbound::Staged), "the old session has ended");
    world.run_for(secs(60));
    assert_eq!(world.nodes[B].numbers(), [1], "and no handshake comes through");
    let handshakes = world.nodes[A].stats().handshakes;
    assert_eq!(handshakes, 1);
}

#[test]
fn a_preshared_key_may_change_many_times_in_one_session() {
    let mut world = World::settled_pair();
    for number in 1..=20 {
        let key = PresharedKey::generate().unwrap();
        set_preshared_key(&mut world, A, B, &key);
        set_preshared_key(&mut world, B, A, &key);
        assert_eq!(world.send(A, B, number), Ok(Outbound::Sealed));
        world.run_for(ms(200));
    }
    assert_eq!(world.nodes[B].numbers(), (1..=20).collect::<Vec<_>>());
    world.run_for(secs(100));
    assert_eq!(world.send(A, B, 21), Ok(Outbound::Sealed), "while the session from before goes on");
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers().last(), Some(&21));
    assert_eq!(world.nodes[A].stats().handshakes, 2);
    assert!(world.passes_both_ways(22), "the next one is not taken for it");
    let indices = |world: &World| world.nodes[A].tunnel.receiver_indices().count();
    assert!((1..=4).contains(&indices(&world)), "{} indices", indices(&world));
    let b = world.nodes[B].public_key();
    assert!(apply(&mut world, A, Change::RemovePeer(b)));
    assert_eq!(indices(&world), 0);
}

#[test]
fn an_answer_from_before_the_preshared_key_changed_is_not_taken() {
    let key = PresharedKey::generate().unwrap();
    let mut world = World::settled_pair();
    world.run_for(secs(95));
    world.send(A, B, 1).unwrap();
    assert_eq!(world.count(A, Kind::Initiation), 1, "the session is old enough to be renewed");
    set_preshared_key(&mut world, A, B, &key);
    world.run_for(ms(200));
    assert_eq!(world.nodes[A].dropped(DropReason::UnexpectedHandshake), 1);
    set_preshared_key(&mut world, B, A, &key);
    world.run_for(secs(10));
    assert_eq!(world.nodes[A].stats().handshakes, 2, "the next initiation has the new key");
    assert_eq!(world.nodes[B].numbers(), [1]);
}

#[test]
fn before_the_first_session_a_new_preshared_key_counts_at_once() {
    let key = PresharedKey::generate().unwrap();
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    set_preshared_key(&mut world, A, B, &key);
    set_preshared_key(&mut world, B, A, &key);
    world.run_for(secs(10));
    assert_eq!(world.nodes[B].numbers(), [0]);
}

#[test]
fn another_private_key_ends_every_session_and_peers_that_know_it_come_back() {
    let mut world = World::settled_pair();
    let key = PrivateKey::generate().unwrap();
    let public_key = key.public_key();
    let (a, b) = (world.nodes[A].public_key(), world.nodes[B].public_key());
    assert!(apply(&mut world, A, Change::PrivateKey(key)));
    assert!(apply(&mut world, A, Change::EndSession(b)));
    assert_eq!(world.send(A, B, 1), Ok(Outbound::Staged));
    // B gets A's new public key.
    assert!(apply(&mut world, B, Change::RemovePeer(a)));
    world.nodes[A].public_key = public_key;
    world.introduce(B, A, Default::default());
    world.run_for(secs(20));
    assert_eq!(world.nodes[B].numbers(), [1]);
    world.send(B, A, 2).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [2]);
}

#[test]
fn what_is_sent_for_the_old_identity_is_not_answered() {
    let mut world = World::settled_pair();
    assert!(apply(&mut world, A, Change::PrivateKey(PrivateKey::generate().unwrap())));
    world.run_for(secs(200));
    world.sent.clear();
    world.send(B, A, 1).unwrap();
    world.run_for(secs(3));
    assert_eq!(world.count(A, Kind::Response), 0);
    assert!(world.nodes[A].dropped(DropReason::InvalidMac) > 0);
}

#[test]
fn another_endpoint_is_used_at_once_and_costs_no_session() {
    let mut world = World::settled_pair();
    let alias = SocketAddr::from(([198, 51, 100, 7], 7));
    world.nodes[B].aliases.push(alias);
    let peer = world.nodes[B].public_key();
    assert!(apply(&mut world, A, Change::Endpoint { peer, endpoint: alias }));
    world.sent.clear();
    assert_eq!(world.send(A, B, 1), Ok(Outbound::Sealed));
    world.run_for(ms(200));
    assert_eq!(world.sent[0].datagram.destination, alias);
    assert_eq!(world.sent[0].source, None, "the routing table chooses again");
    assert_eq!(world.nodes[B].numbers(), [1]);
}

#[test]
fn a_first_endpoint_is_sent_the_keepalive_at_once_and_another_one_is_not() {
    let mut world = World::pair_with(
        PeerOptions { keepalive: Some(3600), hides_endpoint: true, ..Default::default() },
        PeerOptions { hides_endpoint: true, ..Default::default() },
    );
    world.run_for(secs(60));
    assert!(world.sent.is_empty());
    let (peer, endpoint) = (world.nodes[B].public_key(), world.nodes[B].address);
    assert!(apply(&mut world, A, Change::Endpoint { peer, endpoint }));
    world.run_for(secs(1));
    assert_eq!((world.count(A, Kind::Initiation), world.count(B, Kind::Response)), (1, 1));
    world.run_for(secs(60));
    world.sent.clear();
    let alias = SocketAddr::from(([198, 51, 100, 7], 7));
    world.nodes[B].aliases.push(alias);
    assert!(apply(&mut world, A, Change::Endpoint { peer, endpoint: alias }));
    world.run_for(secs(60));
    assert!(world.sent.is_empty(), "it has its time still");
}

#[test]
fn a_first_endpoint_without_a_keepalive_sends_nothing() {
    let hidden = || PeerOptions { hides_endpoint: true, ..Default::default() };
    let mut world = World::pair_with(hidden(), hidden());
    let (peer, endpoint) = (world.nodes[B].public_key(), world.nodes[B].address);
    assert!(apply(&mut world, A, Change::Endpoint { peer, endpoint }));
    assert_eq!(world.nodes[A].tunnel.poll_timeout(), None);
    world.run_for(secs(60));
    assert!(world.sent.is_empty());
}

#[test]
fn a_keepalive_that_is_switched_on_is_sent_at_once_and_one_that_is_switched_off_no_more() {
    let mut world = World::settled_pair();
    let peer = world.nodes[B].public_key();
    let interval = NonZeroU16::new(25);
    assert!(apply(&mut world, A, Change::PersistentKeepalive { peer, interval }));
    assert_eq!(world.count(A, Kind::Keepalive), 1);
    world.run_for(secs(51));
    assert_eq!(world.count(A, Kind::Keepalive), 3);
    // A shorter interval counts from now on, not from when the longer one ends.
    assert!(apply(&mut world, A, Change::PersistentKeepalive { peer, interval: NonZeroU16::new(2) }));
    world.run_for(secs(3));
    assert_eq!(world.count(A, Kind::Keepalive), 4);
    assert!(apply(&mut world, A, Change::PersistentKeepalive { peer, interval: None }));
    world.run_for(secs(60));
    assert_eq!(world.count(A, Kind::Keepalive), 4);
}

#[test]
fn prefixes_come_and_go_and_only_their_owner_loses_them() {
    let mut world = World::hub();
    let [b, c] = [B, C].map(|node| world.nodes[node].public_key());
    let net: IpNet = "10.50.0.0/16".parse().unwrap();
    let towards_net = |world: &mut World| {
        let mut packet = vec![0u8; 20];
        packet[0] = 0x45;
        packet[3] = 20;
        packet[8] = 64;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[16..20].copy_from_slice(&[10, 50, 1, 1]);
        world.give(A, packet, weft_tunnel::Offload::None)
    };
    assert_eq!(towards_net(&mut world), Err(DropReason::NoPeer));
    let allow = |peer, add: &[IpNet], remove: &[IpNet]| Change::AllowedIps {
        peer,
        add: add.to_vec(),
        remove: remove.to_vec(),
    };
    assert!(apply(&mut world, A, allow(b, &[net], &[])));
    assert!(towards_net(&mut world).is_ok());
    // The prefix moves to C; removing it from B then changes nothing.
    assert!(apply(&mut world, A, allow(c, &[net], &[])));
    assert!(apply(&mut world, A, allow(b, &[], &[net])));
    assert!(towards_net(&mut world).is_ok());
    assert!(apply(&mut world, A, Change::RemovePeer(c)));
    assert_eq!(towards_net(&mut world), Err(DropReason::NoPeer));
    assert!(!apply(&mut world, A, allow(c, &[net], &[])), "it is gone");
    // Nor does the next peer get it, which takes the place of C.
    world.introduce(A, C, Default::default());
    assert_eq!(towards_net(&mut world), Err(DropReason::NoPeer));
    // B still has its own prefixes.
    let own: Vec<IpNet> = vec![inner_v4(B).into(), inner_v6(B).into()];
    assert!(world.send(A, B, 1).is_ok());
    assert!(apply(&mut world, A, allow(b, &[], &own)));
    assert_eq!(world.send(A, B, 2), Err(DropReason::NoPeer));
    assert!(apply(&mut world, A, Change::RemovePeer(b)), "a peer without prefixes can be removed too");
}
