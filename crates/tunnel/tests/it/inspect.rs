//! What packet capture and status show: which peer a packet belongs to, and all peers in slices.

use std::net::SocketAddr;

use weft_tunnel::{DropReason, PublicKey};

use crate::sim::{A, B, C, Kind, World, numbered, secs};

/// Creates a world in which A has two peers, B and C, and sessions with both.
fn settled_hub() -> World {
    let mut world = World::hub();
    for other in [B, C] {
        world.send(A, other, 0).unwrap();
        world.run_for(secs(1));
    }
    world
}

fn key(world: &World, node: usize) -> Option<PublicKey> {
    Some(world.nodes[node].public_key())
}

#[test]
fn an_inner_packet_belongs_to_the_peer_of_its_address() {
    let mut world = settled_hub();
    for (other, number) in [(B, 0), (C, 1)] {
        let (to, from) = (numbered(A, other, number), numbered(other, A, number));
        let expected = key(&world, other);
        let tunnel = &mut world.nodes[A].tunnel;
        assert_eq!(tunnel.peer_of_destination(&to), expected);
        assert_eq!(tunnel.peer_of_source(&from), expected);
        assert_eq!((tunnel.peer_of_destination(&from), tunnel.peer_of_source(&to)), (None, None));
        assert_eq!((tunnel.peer_of_destination(b"junk"), tunnel.peer_of_source(b"junk")), (None, None));
    }
}

#[test]
fn a_datagram_belongs_to_the_peer_of_its_index_and_without_one_to_that_of_its_address() {
    let world = settled_hub();
    let elsewhere = SocketAddr::from(([203, 0, 113, 9], 9));
    let c = world.nodes[C].address;
    let a = &world.nodes[A].tunnel;
    let b = &world.nodes[B].tunnel;
    let (of_a, of_b) = (key(&world, A), key(&world, B));
    let mut by_kind = [Kind::Initiation, Kind::Response, Kind::Data].map(|kind| {
        let sent = world.sent.iter().find(|sent| sent.datagram.kind() == kind);
        let datagram = sent.unwrap().datagram.clone();
        // The first initiation and the first data are from A to B, and the response is from B to A.
        let is_from_a = kind != Kind::Response;
        assert_eq!(datagram.source, world.nodes[if is_from_a { A } else { B }].address, "{kind:?}");
        datagram.bytes
    });
    let [initiation, response, data] = &by_kind;
    // What was sent carries an index of the sender only in an initiation and a response.
    assert_eq!(a.peer_of_sent(initiation, elsewhere), of_b);
    assert_eq!(b.peer_of_sent(response, elsewhere), of_a);
    assert_eq!(a.peer_of_sent(data, world.nodes[B].address), of_b);
    assert_eq!(a.peer_of_sent(data, c), key(&world, C));
    assert_eq!(a.peer_of_sent(data, elsewhere), None);
    // What was received carries one of the receiver in all but an initiation.
    assert_eq!(b.peer_of_received(initiation, world.nodes[A].address), of_a);
    assert_eq!(b.peer_of_received(initiation, elsewhere), None);
    for from in [elsewhere, c] {
        assert_eq!(a.peer_of_received(response, from), of_b);
        assert_eq!(b.peer_of_received(data, from), of_a);
    }
    // The index in an initiation is the sender's, which may be one of the receiver's by chance.
    let [initiation, _, data] = &mut by_kind;
    initiation[4..8].copy_from_slice(&data[4..8]);
    assert_eq!(b.peer_of_received(initiation, elsewhere), None);
    // An index of no session leads to no peer.
    data[4..8].fill(0);
    assert_eq!(b.peer_of_received(data, elsewhere), None);
    assert_eq!((a.peer_of_sent(&[], c), a.peer_of_received(&[], c)), (None, None));
}

#[test]
fn peers_are_read_in_slices_and_each_is_seen_once() {
    let mut world = settled_hub();
    let tunnel = &mut world.nodes[A].tunnel;
    for count in 1..=3 {
        let (mut peers, mut place, mut slices) = (Vec::new(), Some(0), 0);
        while let Some(at) = place {
            place = tunnel.peers_from(at, count, &mut peers);
            slices += 1;
        }
        assert_eq!(slices, 2usize.div_ceil(count));
        let mut keys: Vec<_> = peers.iter().map(|peer| peer.public_key).collect();
        keys.sort_unstable();
        let mut expected: Vec<_> = tunnel.peers().map(|peer| peer.public_key).collect();
        expected.sort_unstable();
        assert_eq!(keys, expected);
    }
    assert_eq!(tunnel.peers_from(2, 1, &mut Vec::new()), None);
}

#[test]
fn receiver_indices_have_another_version_whenever_they_change() {
    let mut world = World::pair();
    let mut seen = Vec::new();
    let look = |world: &World, seen: &mut Vec<(u64, Vec<u32>)>| {
        let tunnel = &world.nodes[A].tunnel;
        let mut indices: Vec<_> = tunnel.receiver_indices().collect();
        indices.sort_unstable();
        seen.push((tunnel.receiver_indices_version(), indices));
    };
    look(&world, &mut seen);
    world.send(A, B, 0).unwrap();
    look(&world, &mut seen);
    world.run_until(secs(125));
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    look(&world, &mut seen);
    world.run_for(secs(1000));
    look(&world, &mut seen);
    for pair in seen.windows(2) {
        assert!(pair[0].1 != pair[1].1 && pair[0].0 < pair[1].0, "{seen:?}");
    }
}

#[test]
fn what_the_caller_drops_is_counted_with_the_rest() {
    let mut world = World::pair();
    let tunnel = &mut world.nodes[A].tunnel;
    tunnel.count_drop(DropReason::Overload, 3);
    tunnel.count_drop(DropReason::Overload, 1);
    assert_eq!(tunnel.drops().get(DropReason::Overload), 4);
}
