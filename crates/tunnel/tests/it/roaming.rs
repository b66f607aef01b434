//! The endpoint of a peer is the source of its last authenticated message, and of no other.

use std::net::{IpAddr, SocketAddr};

use weft_tunnel::{DropReason, Event};

use crate::sim::{A, B, Datagram, Kind, World, secs};

fn elsewhere() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 7], 40_000))
}

fn from_elsewhere(datagram: &Datagram) -> Datagram {
    Datagram { source: elsewhere(), ..datagram.clone() }
}

/// Returns the source address that the newest datagram of `from` asked for.
fn asked_source(world: &World, from: usize) -> Option<IpAddr> {
    world.sent.iter().rev().find(|sent| sent.from == from).and_then(|sent| sent.source)
}

#[test]
fn the_endpoint_follows_data() {
    let mut world = World::settled_pair();
    world.nodes[A].address = elsewhere();
    // A has moved and lost the source address that it used.
    let peer = world.nodes[A].last_path_peer.unwrap();
    world.nodes[A].tunnel.forget_source(peer);
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.endpoint(B, A), Some(elsewhere()));
    let peer = world.nodes[A].public_key();
    assert_eq!(world.nodes[B].events, [Event::EndpointChanged { peer, endpoint: elsewhere() }]);
    world.send(B, A, 2).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [2]);
    assert_eq!(world.nodes[B].events.len(), 1, "said once");
}

#[test]
fn the_endpoint_follows_a_keepalive() {
    let mut world = World::settled_pair();
    world.cut.insert((A, B));
    world.send(B, A, 1).unwrap();
    world.run_for(secs(11));
    let keepalive = world.last_sent(A, Kind::Keepalive);
    let before = world.nodes[B].stats().keepalives_received;
    assert_eq!(world.deliver(B, &from_elsewhere(&keepalive)), Ok(None));
    assert_eq!(world.endpoint(B, A), Some(elsewhere()));
    assert_eq!(world.nodes[B].stats().keepalives_received, before + 1);
}

#[test]
fn the_endpoint_follows_a_handshake() {
    let mut world = World::settled_pair();
    world.run_for(secs(200));
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let initiation = world.last_sent(A, Kind::Initiation);
    world.deliver(B, &from_elsewhere(&initiation)).unwrap();
    assert_eq!(world.endpoint(B, A), Some(elsewhere()));
    assert_eq!(world.last_sent(B, Kind::Response).destination, elsewhere(), "which is answered there");

    let mut response = world.last_sent(B, Kind::Response);
    response.source = SocketAddr::from(([198, 51, 100, 8], 8));
    response.destination = world.nodes[A].address;
    world.deliver(A, &response).unwrap();
    assert_eq!(world.endpoint(A, B), Some(response.source));
}

#[test]
fn the_endpoint_does_not_follow_what_is_forged_or_replayed() {
    let mut world = World::settled_pair();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    let old = world.last_sent(A, Kind::Data);
    assert_eq!(world.deliver(B, &from_elsewhere(&old)), Err(DropReason::Replayed));
    world.cut.insert((A, B));
    world.send(A, B, 2).unwrap();
    let mut forged = from_elsewhere(&world.last_sent(A, Kind::Data));
    *forged.bytes.last_mut().unwrap() ^= 1;
    assert_eq!(world.deliver(B, &forged), Err(DropReason::InvalidTag));

    world.run_for(secs(200));
    world.cut.clear();
    world.send(A, B, 3).unwrap();
    world.run_for(secs(1));
    let initiation = from_elsewhere(&world.last_sent(A, Kind::Initiation));
    assert_eq!(world.deliver(B, &initiation), Err(DropReason::ReplayedHandshake));
    let response = from_elsewhere(&world.last_sent(B, Kind::Response));
    assert_eq!(world.deliver(A, &response), Err(DropReason::UnexpectedHandshake));

    for (node, other) in [(A, B), (B, A)] {
        assert_eq!(world.endpoint(node, other), Some(world.nodes[other].address));
        let moved = |event: &&Event| matches!(event, Event::EndpointChanged { .. });
        assert_eq!(world.nodes[node].events.iter().filter(moved).count(), 0);
    }
}

#[test]
fn an_answer_leaves_from_the_address_that_was_asked() {
    let mut world = World::settled_pair();
    let second = SocketAddr::from(([192, 0, 2, 99], 51820));
    world.nodes[B].aliases.push(second);
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    let mut datagram = world.last_sent(A, Kind::Data);
    world.cut.clear();
    datagram.destination = second;
    world.deliver(B, &datagram).unwrap();
    world.send(B, A, 2).unwrap();
    assert_eq!(asked_source(&world, B), Some(second.ip()));
    world.run_for(secs(1));
    assert_eq!(world.endpoint(A, B), Some(second), "so the peer sees it move there");
    assert_eq!(world.endpoint(B, A), Some(world.nodes[A].address));
    world.send(A, B, 3).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1, 3]);
}

#[test]
fn a_source_that_was_forgotten_is_chosen_by_the_routing_table_until_the_peer_is_heard() {
    let mut world = World::settled_pair();
    world.send(B, A, 1).unwrap();
    assert_eq!(asked_source(&world, B), Some(world.nodes[B].address.ip()));
    let peer = world.nodes[B].last_path_peer.unwrap();
    world.nodes[B].tunnel.forget_source(peer);
    world.send(B, A, 2).unwrap();
    assert_eq!(asked_source(&world, B), None);
    assert_eq!(world.endpoint(B, A), Some(world.nodes[A].address), "the destination stays");
    world.run_for(secs(1));
    world.send(A, B, 3).unwrap();
    world.run_for(secs(1));
    world.send(B, A, 4).unwrap();
    assert_eq!(asked_source(&world, B), Some(world.nodes[B].address.ip()));
}

#[test]
fn silence_forgets_the_source() {
    let mut world = World::settled_pair();
    world.cut.insert((B, A));
    world.send(A, B, 1).unwrap();
    assert!(asked_source(&world, A).is_some());
    world.run_for(secs(16));
    let sent = world.sent.iter().rev().find(|sent| sent.datagram.kind() == Kind::Initiation).unwrap();
    assert_eq!((sent.from, sent.source), (A, None));
}
