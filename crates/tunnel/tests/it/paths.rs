//! The path to a peer changes: datagrams get another source, and the peer learns of it at once.

use std::net::SocketAddr;

use weft_tunnel::{Change, PublicKey};

use crate::sim::{A, B, C, Kind, PeerOptions, World, ms, secs};

fn key(world: &World, node: usize) -> PublicKey {
    world.nodes[node].public_key()
}

/// Changes the address that the routing table of A chooses. A keeps or loses the old address. Returns the new
/// address.
fn move_a(world: &mut World, keeps_the_old: bool) -> SocketAddr {
    let old = world.nodes[A].address;
    let new = SocketAddr::from(([198, 51, 100, 1], 51820));
    world.nodes[A].address = new;
    if keeps_the_old {
        world.nodes[A].aliases.push(old);
    }
    new
}

fn paths_changed(world: &mut World, node: usize, others: &[usize]) {
    for other in others {
        let (peer, now) = (key(world, *other), world.now);
        assert!(world.nodes[node].tunnel.apply(Change::PathChanged(peer), now));
    }
}

#[test]
fn an_idle_peer_learns_the_new_address_at_once_and_without_a_handshake_if_it_answers() {
    let mut world = World::settled_pair();
    let new = move_a(&mut world, false);
    paths_changed(&mut world, A, &[B]);
    world.run_for(secs(1));
    assert_eq!(world.endpoint(B, A), Some(new));
    assert_eq!((world.count(A, Kind::Keepalive), world.count(A, Kind::Initiation)), (1, 0));
    world.send(B, A, 1).unwrap();
    world.run_for(secs(5));
    assert_eq!(world.nodes[A].numbers(), [1]);
    assert_eq!(world.count(A, Kind::Initiation), 0);
}

#[test]
fn a_silent_peer_is_asked_by_a_handshake() {
    let mut world = World::settled_pair();
    let new = move_a(&mut world, false);
    // The keepalive is lost.
    world.cut.insert((A, B));
    paths_changed(&mut world, A, &[B]);
    world.run_for(secs(1));
    world.cut.clear();
    world.run_for(secs(2));
    assert_eq!(world.endpoint(B, A), Some(new));
    assert_eq!((world.count(A, Kind::Initiation), world.count(B, Kind::Response)), (1, 1));
    assert!(world.passes_both_ways(2));
}

#[test]
fn data_that_is_sent_anyway_takes_the_place_of_the_keepalive() {
    let mut world = World::settled_pair();
    let new = move_a(&mut world, false);
    paths_changed(&mut world, A, &[B]);
    // `send` handles due timers first, so a keepalive may precede the data. In both cases the first datagram
    // asks for no source address.
    world.send(A, B, 1).unwrap();
    assert!(world.sent.iter().all(|sent| sent.source.is_none()));
    world.run_for(ms(60));
    assert_eq!(world.endpoint(B, A), Some(new));
}

#[test]
fn what_still_arrives_at_the_old_address_does_not_bring_it_back() {
    let mut world = World::settled_pair();
    // B keeps sending to the old address, which still is one of A's.
    world.send(B, A, 1).unwrap();
    let new = move_a(&mut world, true);
    world.cut.insert((A, B));
    paths_changed(&mut world, A, &[B]);
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [1]);
    world.cut.clear();
    world.send(A, B, 2).unwrap();
    assert_eq!(world.sent.last().unwrap().source, None);
    world.run_for(secs(1));
    assert_eq!(world.endpoint(B, A), Some(new));
    // Later the address that the peer sends to is the source of answers again.
    world.send(B, A, 3).unwrap();
    world.run_for(secs(10));
    world.send(B, A, 4).unwrap();
    world.run_for(secs(1));
    world.send(A, B, 5).unwrap();
    assert_eq!(world.sent.last().unwrap().source, Some(new.ip()));
}

#[test]
fn what_was_learnt_of_a_path_ends_with_it() {
    let mut world = World::settled_pair();
    world.send(A, B, 0).unwrap();
    let (peer, now) = (world.nodes[A].last_path_peer.unwrap(), world.now);
    world.nodes[A].tunnel.limit_path(peer, 1300, now);
    paths_changed(&mut world, A, &[B]);
    assert_eq!(world.nodes[A].tunnel.peers().next().unwrap().path_limit, None);
}

#[test]
fn peers_without_a_session_are_left_in_peace() {
    let mut world = World::pair();
    paths_changed(&mut world, A, &[B]);
    world.run_for(secs(30));
    assert!(world.sent.is_empty());
    // Peers with an ended session are sent nothing either.
    world.send(A, B, 1).unwrap();
    world.run_for(secs(400));
    world.sent.clear();
    paths_changed(&mut world, A, &[B]);
    world.run_for(secs(30));
    assert!(world.sent.is_empty());
}

#[test]
fn the_other_peers_notice_nothing() {
    let mut world = World::hub();
    for other in [B, C] {
        world.send(A, other, 0).unwrap();
        world.run_for(secs(20));
    }
    world.sent.clear();
    let c = world.nodes[C].address;
    paths_changed(&mut world, A, &[C]);
    world.run_for(secs(1));
    assert!(world.sent.iter().filter(|sent| sent.from == A).all(|sent| sent.datagram.destination == c));
    assert_eq!(world.count(A, Kind::Keepalive), 1);
}

#[test]
fn many_peers_are_told_one_after_the_other() {
    let peers = 200;
    let mut world = World::of(peers + 1);
    for other in 1..=peers {
        world.introduce(A, other, PeerOptions::default());
        world.introduce(other, A, PeerOptions::default());
        world.send(A, other, 0).unwrap();
    }
    world.run_for(secs(30));
    world.sent.clear();
    let others: Vec<_> = (1..=peers).collect();
    paths_changed(&mut world, A, &others);
    world.run_for(secs(1));
    let mut times = world.times(A, Kind::Keepalive);
    assert_eq!(times.len(), peers);
    times.dedup();
    assert!(times.len() > peers / 2, "they are spread");
    assert!(*times.last().unwrap() - times[0] < secs(1));
}

#[test]
fn after_a_short_sleep_the_peer_hears_from_us_and_after_a_long_one_there_is_a_new_session() {
    for (slept, kind) in [(secs(60), Kind::Keepalive), (secs(3600), Kind::Initiation)] {
        let mut world = World::settled_pair();
        let (peer, now) = (key(&world, B), world.now);
        assert!(world.nodes[A].tunnel.apply(Change::Resumed { peer, slept }, now));
        world.run_for(ms(500));
        assert_eq!(world.count(A, kind), 1, "{kind:?}");
        assert_eq!(world.count(A, Kind::Initiation), usize::from(kind == Kind::Initiation));
    }
}
