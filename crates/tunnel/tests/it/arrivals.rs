//! Data messages counted by the counters that they carry.

use crate::sim::{A, B, Kind, World, secs};

/// Returns how many messages from A are missing at B, and how many arrived behind a later one.
fn missing_and_displaced(world: &World) -> (u64, u64) {
    let arrivals = world.nodes[B].peer(&world.nodes[A].public_key()).arrivals;
    (arrivals.expected - arrivals.received, arrivals.displaced)
}

#[test]
fn lost_and_displaced_messages_are_counted_exactly_over_all_sessions() {
    let mut world = World::settled_pair();
    assert_eq!(missing_and_displaced(&world), (0, 0));
    world.cut.insert((A, B));
    let sent: Vec<_> = (1..=3)
        .map(|number| {
            world.send(A, B, number).unwrap();
            world.last_sent(A, Kind::Data)
        })
        .collect();
    world.cut.clear();
    assert_eq!(missing_and_displaced(&world), (0, 0), "no later message has arrived");
    world.send(A, B, 4).unwrap();
    world.run_for(secs(1));
    assert_eq!(missing_and_displaced(&world), (3, 0));

    world.deliver(B, &sent[1]).unwrap();
    assert_eq!(missing_and_displaced(&world), (2, 1));
    world.deliver(B, &sent[1]).unwrap_err();
    assert_eq!(missing_and_displaced(&world), (2, 1), "a replay is none of them");

    // The counters of the next session begin at 0 again.
    world.run_for(secs(200));
    world.send(A, B, 5).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    assert_eq!(missing_and_displaced(&world), (2, 1));
}

#[test]
fn the_bytes_of_a_peer_are_those_of_all_its_datagrams() {
    let mut world = World::pair();
    for number in 1..=3 {
        world.send(A, B, number).unwrap();
    }
    world.run_for(secs(1));
    world.send(B, A, 4).unwrap();
    world.run_for(secs(30));
    for (from, to) in [(A, B), (B, A)] {
        let sent = world.sent.iter().filter(|sent| sent.from == from);
        let bytes = sent.map(|sent| sent.datagram.bytes.len() as u64).sum::<u64>();
        let sender = world.nodes[from].peer(&world.nodes[to].public_key());
        let receiver = world.nodes[to].peer(&world.nodes[from].public_key());
        assert_eq!((sender.sent_bytes, receiver.received_bytes), (bytes, bytes), "from {from}");
    }
}
