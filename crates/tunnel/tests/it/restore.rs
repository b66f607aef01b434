//! A tunnel replaces a previous tunnel, and has its recorded state.

use std::net::SocketAddr;

use weft_tunnel::{Change, PublicKey, Remembered};

use crate::sim::{A, B, Kind, PeerOptions, World, ms, secs};

/// Restarts A's side of the peer B, with this recorded state.
fn restart_with(world: &mut World, remembered: Remembered) -> PublicKey {
    let (key, now) = (world.nodes[B].public_key(), world.now);
    assert!(world.nodes[A].tunnel.remove_peer(&key));
    world.introduce(A, B, PeerOptions::default());
    assert!(world.nodes[A].tunnel.apply(Change::Restore { peer: key, remembered }, now));
    key
}

#[test]
fn a_peer_that_has_a_session_is_greeted_at_once() {
    let mut world = World::settled_pair();
    restart_with(&mut world, Remembered { has_session: true, ..Remembered::default() });
    // B does not know of the restart, and A cannot open what B sends now.
    world.send(B, A, 1).unwrap();
    world.send(A, B, 2).unwrap();
    world.run_for(ms(250));
    assert_eq!((world.count(A, Kind::Initiation), world.count(B, Kind::Response)), (1, 1));
    assert_eq!(world.nodes[B].numbers(), [2], "it waited for the session");
    assert!(world.passes_both_ways(3));
    assert_eq!(world.count(B, Kind::Initiation), 0);
}

#[test]
fn a_peer_without_a_session_is_left_alone() {
    let mut world = World::settled_pair();
    restart_with(&mut world, Remembered::default());
    world.run_for(secs(10));
    assert_eq!(world.count(A, Kind::Initiation), 0);
}

#[test]
fn it_answers_from_the_address_that_the_peer_knows_and_counts_on() {
    let mut world = World::settled_pair();
    let alias = SocketAddr::from(([198, 51, 100, 7], 51820));
    world.nodes[A].aliases.push(alias);
    let at = world.now - secs(40);
    let remembered = Remembered {
        last_handshake: Some(at),
        source: Some(alias.ip()),
        sent_bytes: 1000,
        received_bytes: 2000,
        has_session: true,
    };
    let key = restart_with(&mut world, remembered);
    let peer = world.nodes[A].peer(&key);
    assert_eq!((peer.last_handshake, peer.source), (Some(at), Some(alias.ip())));
    assert_eq!((peer.sent_bytes, peer.received_bytes), (1000, 2000));
    world.run_for(ms(250));
    let first = world.sent.iter().find(|sent| sent.datagram.kind() == Kind::Initiation).unwrap();
    assert_eq!(first.source, Some(alias.ip()));
    let peer = world.nodes[A].peer(&key);
    assert!(peer.last_handshake > Some(at) && peer.sent_bytes > 1000 && peer.received_bytes > 2000);
}

#[test]
fn a_peer_that_was_quicker_needs_no_second_handshake() {
    let mut world = World::settled_pair();
    let key = world.nodes[B].public_key();
    assert!(world.nodes[A].tunnel.remove_peer(&key));
    world.introduce(A, B, PeerOptions::default());
    world.send(A, B, 1).unwrap();
    world.run_for(ms(500));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    let remembered = Remembered { has_session: true, ..Remembered::default() };
    let now = world.now;
    assert!(world.nodes[A].tunnel.apply(Change::Restore { peer: key, remembered }, now));
    world.run_for(secs(10));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    let stranger = world.nodes[A].public_key();
    assert!(!world.nodes[A].tunnel.apply(Change::Restore { peer: stranger, remembered }, now));
}
