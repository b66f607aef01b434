//! A peer that moves from one shard to another: what goes with it, and what the others keep.

use std::collections::BTreeSet;

use weft_tunnel::{Change, DropReason, Inbound, PrivateKey};

use super::{S, hand_over, receive, world_of};
use crate::sim::{Kind, ms, secs};

#[test]
fn a_peer_moves_with_its_session_its_staged_packets_and_a_handshake_under_way() {
    let mut world = world_of(3, 2);
    let key = world.nodes[1].public_key();
    world.network.delay = ms(20);
    // The initiation is under way, and two packets wait for its answer.
    for number in 0..2 {
        let _ = world.send(S, 1, number);
    }
    world.move_peer(S, &key, 2);
    let staged: Vec<u64> = world.nodes[S].shards().map(|tunnel| tunnel.stats().staged_segments).collect();
    assert_eq!(staged, [0, 0, 2]);
    world.run_for(secs(1));
    assert_eq!(world.nodes[1].numbers(), [0, 1]);
    assert_eq!(world.handed_over, 1, "the response");

    // Both directions use the session from before the second move at once.
    world.move_peer(S, &key, 1);
    let _ = world.send(S, 1, 2);
    let _ = world.send(1, S, 3);
    let handed_over = world.handed_over;
    world.run_for(ms(100));
    assert_eq!((world.nodes[1].numbers(), world.nodes[S].numbers()), (vec![0, 1, 2], vec![3]));
    assert!(world.handed_over > handed_over);

    // The next session has an index of the shard: nothing is handed over any more.
    world.run_for(secs(6));
    let handed_over = world.handed_over;
    let _ = world.send(1, S, 4);
    world.run_for(ms(100));
    assert_eq!((world.nodes[S].numbers(), world.handed_over), (vec![3, 4], handed_over));
    // What the others kept of the first sessions is forgotten when they cannot be alive.
    world.run_for(secs(330));
    world.pump(S);
    for (number, tunnel) in world.nodes[S].shards().enumerate() {
        assert!(number == 1 || tunnel.receiver_indices().count() == 0, "shard {number}");
    }
}

#[test]
fn a_peer_that_moves_with_a_session_gets_one_with_an_index_of_its_shard_and_no_other_is_asked() {
    let mut world = world_of(2, 2);
    let keys = [1, 2].map(|node| world.nodes[node].public_key());
    world.send(1, S, 0).unwrap();
    world.run_for(secs(30));
    world.sent.clear();
    world.move_peer(S, &keys[0], 1);
    world.move_peer(S, &keys[1], 0);
    world.run_for(secs(6));
    let initiations: Vec<_> = world
        .sent
        .iter()
        .filter(|sent| sent.from == S && sent.datagram.kind() == Kind::Initiation)
        .map(|sent| sent.datagram.destination)
        .collect();
    assert_eq!(initiations, [world.nodes[1].address], "the other had no session");
    world.send(1, S, 2).unwrap();
    world.run_for(secs(1));
    assert_eq!((world.nodes[S].numbers(), world.handed_over), (vec![0, 2], 0));
}

#[test]
fn a_moved_peer_names_the_indices_of_its_sessions_and_handshakes() {
    let mut world = world_of(2, 2);
    let keys = [1, 2].map(|node| world.nodes[node].public_key());
    world.send(S, 1, 0).unwrap();
    world.run_for(secs(150));
    // An initiation is under way beside the session.
    world.cut.insert((S, 1));
    world.send(S, 1, 2).unwrap();
    let now = world.now;
    let shard = world.nodes[S].shard_mut(0);
    let expected: BTreeSet<u32> = shard.receiver_indices().collect();
    assert_eq!(expected.len(), 2);
    let moved = shard.take_peer(&keys[0], 1, now).unwrap();
    assert_eq!((moved.public_key(), moved.receiver_indices().collect()), (keys[0], expected));
    let moved = world.nodes[S].shard_mut(1).take_peer(&keys[1], 0, now).unwrap();
    assert_eq!((moved.public_key(), moved.receiver_indices().count()), (keys[1], 0));
}

#[test]
fn packets_of_others_stay_ready_when_a_peer_moves() {
    let mut world = world_of(2, 3);
    world.flushes = false;
    // Shard 0 has the first peer and the third.
    for other in [1, 3] {
        assert_eq!(world.nodes[S].owner_of(&world.nodes[other].public_key()), Some(0));
        world.send(S, other, 2).unwrap();
    }
    world.run_for(secs(1));
    let key = world.nodes[1].public_key();
    world.move_peer(S, &key, 1);
    world.flushes = true;
    world.run_for(secs(1));
    assert_eq!((world.nodes[1].numbers(), world.nodes[3].numbers()), (vec![2], vec![2]));
}

#[test]
fn a_message_of_a_session_that_ended_after_a_move_is_not_handed_back() {
    let mut world = world_of(3, 2);
    let key = world.nodes[1].public_key();
    let _ = world.send(1, S, 0);
    world.run_for(secs(1));
    let _ = world.send(1, S, 1);
    let old = world.last_sent(1, Kind::Data);
    world.run_for(secs(1));
    world.move_peer(S, &key, 2);
    let now = world.now;
    assert!(world.nodes[S].shard_mut(2).apply(Change::EndSession(key), now));
    // The kernel gives it to shard 0, and that to the shard that has the peer now.
    assert_eq!(receive(&mut world, 0, &old), Ok(Inbound::Elsewhere(2)));
    assert_eq!(hand_over(&mut world, 2, &old), Err(DropReason::UnknownReceiverIndex));
    world.move_peer(S, &key, 1);
    assert_eq!(receive(&mut world, 0, &old), Ok(Inbound::Elsewhere(1)));
    assert_eq!(hand_over(&mut world, 1, &old), Err(DropReason::UnknownReceiverIndex));
    // A peer that is removed is forgotten everywhere.
    for shard in 0..3 {
        assert!(world.nodes[S].shard_mut(shard).apply(Change::RemovePeer(key), now));
    }
    assert_eq!(receive(&mut world, 0, &old), Err(DropReason::UnknownReceiverIndex));
    for shard in [1, 2] {
        assert_eq!(hand_over(&mut world, shard, &old), Err(DropReason::UnknownReceiverIndex));
    }
}

#[test]
fn a_peer_is_taken_out_only_for_another_shard_of_the_interface() {
    let mut world = world_of(3, 2);
    let (key, now) = (world.nodes[2].public_key(), world.now);
    let stranger = PrivateKey::generate().unwrap().public_key();
    assert_eq!(world.nodes[S].owner_of(&key), Some(1));
    let has_peer = [0, 1, 2].map(|shard| world.nodes[S].shard_mut(shard).has_peer(&key));
    assert_eq!(has_peer, [false, true, false]);
    assert!(!world.nodes[S].tunnel.has_peer(&stranger));
    for (shard, key, to) in [(1, key, 1), (1, key, 3), (1, key, 4), (0, key, 2), (1, stranger, 2)] {
        let moved = world.nodes[S].shard_mut(shard).take_peer(&key, to, now);
        assert!(moved.is_none(), "from {shard} to {to}");
    }
    world.send(S, 2, 0).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[2].numbers(), [0]);
}
