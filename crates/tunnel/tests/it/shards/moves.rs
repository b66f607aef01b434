//! A peer that moves from one shard to another: what goes with it, and what the others keep.

use weft_tunnel::{
    Change, DropReason, Inbound, Offload, Outbound, PacketMut, PrivateKey, TAILROOM, TransmitQueue,
};

use super::{S, hand_over, receive, world_of};
use crate::sim::{Kind, ms, numbered, secs};

#[test]
fn a_peer_moves_with_its_session_and_without_staged_packets_and_a_handshake_under_way() {
    let mut world = world_of(3, 2);
    let key = world.nodes[1].public_key();
    world.network.delay = ms(20);
    // The initiation is under way, and two packets wait for its answer.
    for number in 0..2 {
        let _ = world.send(S, 1, number);
    }
    assert!(world.move_peer(S, &key, 2));
    let staged: u64 = world.nodes[S].shards().map(|tunnel| tunnel.stats().staged_segments).sum();
    assert_eq!((staged, world.nodes[S].dropped(DropReason::PeerMoved)), (0, 2));
    // The response is for nothing any more, and the next handshake may begin 5 s after the last.
    world.run_for(secs(7));
    let _ = world.send(S, 1, 0);
    let _ = world.send(S, 1, 1);
    world.run_for(secs(1));
    assert_eq!((world.nodes[1].numbers(), world.handed_over), (vec![0, 1], 0));

    // Both directions use the session from before the second move at once.
    assert!(world.move_peer(S, &key, 1));
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
    assert!(world.move_peer(S, &keys[0], 1));
    assert!(world.move_peer(S, &keys[1], 0));
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
fn what_is_sealed_and_not_sent_moves_with_its_peer_and_nothing_is_sealed_there_after() {
    let mut world = world_of(2, 3);
    let [key, other] = [1, 3].map(|node| world.nodes[node].public_key());
    assert_eq!([&key, &other].map(|key| world.nodes[S].owner_of(key)), [Some(0); 2]);
    for node in [1, 3] {
        world.send(S, node, 0).unwrap();
    }
    world.run_for(secs(10));
    let now = world.now;
    let seal = |world: &mut crate::sim::World, shard: usize, to: usize, out: &mut TransmitQueue| {
        let mut packet = numbered(S, to, 2);
        let len = packet.len();
        packet.resize(len + TAILROOM, 0);
        let mut packet = PacketMut::new(&mut packet, len, Offload::None).unwrap();
        world.nodes[S].shard_mut(shard).handle_tun_packet(&mut packet, now, out)
    };
    // The counter of each message to the peer, and whether it is to another.
    let counters = |out: &mut TransmitQueue, address| {
        let batches = std::iter::from_fn(|| out.pop());
        let counter = |bytes: &[u8]| u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let all = batches.flat_map(|batch| {
            let unsent = batch.unsent();
            let each = unsent.contents.chunks(unsent.segment_size);
            each.map(|bytes| (counter(bytes), unsent.destination == address)).collect::<Vec<_>>()
        });
        all.collect::<Vec<_>>()
    };
    let (mut before, mut after) = (TransmitQueue::new(8), TransmitQueue::new(8));
    for to in [1, 3, 1] {
        assert_eq!(seal(&mut world, 0, to, &mut before), Ok(Outbound::Sealed));
    }
    let moved = world.nodes[S].shard_mut(0).take_peer(&key, 1, now, &mut before).unwrap();
    assert_eq!(seal(&mut world, 0, 1, &mut before), Err(DropReason::PeerMoved));
    assert!(!world.nodes[S].tunnel.has_answers(), "its sender is told nothing");
    world.nodes[S].shard_mut(1).adopt_peer(moved, now, &mut after);
    assert_eq!(seal(&mut world, 1, 1, &mut after), Ok(Outbound::Sealed));
    let address = world.nodes[1].address;
    assert_eq!(counters(&mut before, address), [(2, false)]);
    assert_eq!(counters(&mut after, address), [(2, true), (3, true), (4, true)]);
}

#[test]
fn a_peer_moves_again_and_old_messages_are_dropped_once_the_next_session_is_in_use() {
    let mut world = world_of(3, 2);
    let key = world.nodes[1].public_key();
    world.send(1, S, 0).unwrap();
    world.run_for(secs(30));
    let (_, replayed) = (world.send(1, S, 2), world.last_sent(1, Kind::Data));
    world.run_for(secs(1));
    world.cut.insert((1, S));
    let old: Vec<_> = [4, 6]
        .map(|number| {
            world.send(1, S, number).unwrap();
            world.last_sent(1, Kind::Data)
        })
        .into();
    world.cut.clear();
    assert!(world.move_peer(S, &key, 1));
    assert!(!world.move_peer(S, &key, 2), "it uses the session from before the move");
    // Whatever thread the kernel gives it to, it goes the way of those before it.
    assert_eq!(receive(&mut world, 1, &old[0]), Ok(Inbound::Elsewhere(0)));
    assert_eq!(receive(&mut world, 0, &old[0]), Ok(Inbound::Elsewhere(1)));
    assert!(matches!(hand_over(&mut world, 1, &old[0]), Ok(Inbound::Packet(_))));
    for seen in [&old[0], &replayed] {
        assert_eq!(hand_over(&mut world, 1, seen), Err(DropReason::Replayed), "the window moved as well");
    }
    // A forged message of the next session changes nothing.
    world.run_for(secs(1));
    world.cut.insert((1, S));
    world.send(1, S, 8).unwrap();
    let next = world.last_sent(1, Kind::Data);
    let mut forged = next.clone();
    forged.bytes[20] ^= 1;
    assert_eq!(receive(&mut world, 1, &forged), Err(DropReason::InvalidTag));
    assert!(!world.move_peer(S, &key, 2));
    assert!(matches!(receive(&mut world, 1, &next), Ok(Inbound::Packet(_))));
    assert_eq!(hand_over(&mut world, 1, &old[1]), Err(DropReason::Overload), "it would be out of order");
    assert!(world.move_peer(S, &key, 2));
    assert_eq!(hand_over(&mut world, 1, &old[1]), Err(DropReason::Overload), "the peer has moved on");
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
    assert!(world.move_peer(S, &key, 1));
    world.flushes = true;
    world.run_for(secs(1));
    assert_eq!((world.nodes[1].numbers(), world.nodes[3].numbers()), (vec![], vec![2]));
    assert_eq!(world.nodes[S].dropped(DropReason::PeerMoved), 1);
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
    assert!(world.move_peer(S, &key, 2));
    let now = world.now;
    assert!(world.nodes[S].shard_mut(2).apply(Change::EndSession(key), now));
    // The kernel gives it to shard 0, and that to the shard that has the peer now.
    assert_eq!(receive(&mut world, 0, &old), Ok(Inbound::Elsewhere(2)));
    assert_eq!(hand_over(&mut world, 2, &old), Err(DropReason::UnknownReceiverIndex));
    assert!(world.move_peer(S, &key, 1));
    assert_eq!(receive(&mut world, 0, &old), Ok(Inbound::Elsewhere(1)));
    assert_eq!(hand_over(&mut world, 1, &old), Err(DropReason::Overload));
    // A peer that is removed is forgotten everywhere.
    for shard in 0..3 {
        assert!(world.nodes[S].shard_mut(shard).apply(Change::RemovePeer(key), now));
    }
    assert_eq!(receive(&mut world, 0, &old), Err(DropReason::UnknownReceiverIndex));
    for shard in [1, 2] {
        hand_over(&mut world, shard, &old).unwrap_err();
    }
}

#[test]
fn a_peer_is_taken_out_only_for_another_shard_of_the_interface() {
    let mut world = world_of(3, 2);
    let (key, now) = (world.nodes[2].public_key(), world.now);
    let stranger = PrivateKey::generate().unwrap().public_key();
    assert_eq!(world.nodes[S].owner_of(&key), Some(1));
    for (shard, key, to) in [(1, key, 1), (1, key, 3), (1, key, 4), (0, key, 2), (1, stranger, 2)] {
        let moved = world.nodes[S].shard_mut(shard).take_peer(&key, to, now, &mut TransmitQueue::new(8));
        assert!(moved.is_none(), "from {shard} to {to}");
    }
    world.send(S, 2, 0).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[2].numbers(), [0]);
}
