//! How one session follows another, and how the last one ends.

use weft_tunnel::{DropReason, Outbound};

use crate::sim::{A, B, DELAY, Kind, World, ms, secs};

/// When A's side of the session is established in a pair that starts at once.
const ESTABLISHED: std::time::Duration = ms(100);

#[test]
fn only_the_initiator_renews_the_session_when_it_sends_after_120_seconds() {
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    world.run_until(ESTABLISHED + ms(119_999));
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    world.send(B, A, 2).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation), 1);
    world.send(A, B, 3).unwrap();
    let at = world.elapsed();
    world.run_for(secs(3));
    assert_eq!(world.times(A, Kind::Initiation)[1..], [at]);
    assert_eq!(world.nodes[B].numbers(), [0, 1, 3], "without waiting for the new session");
    assert_eq!(world.count(B, Kind::Initiation), 0);
    assert_eq!((world.nodes[A].stats().handshakes, world.nodes[B].stats().handshakes), (2, 2));
}

#[test]
fn the_initiator_renews_the_session_when_it_receives_after_165_seconds() {
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    // The packets are far enough apart that A sends only keepalives, and close enough that B never appears
    // silent.
    for number in 1..=40 {
        world.run_until(secs(20) + secs(4) * number as u32);
        world.send(B, A, number).unwrap();
    }
    world.run_for(secs(5));
    let begun = world.times(A, Kind::Initiation);
    // A's keepalives are not data, but A sends them on an old session.
    assert_eq!(begun.len(), 2, "{begun:?}");
    assert_eq!(world.count(B, Kind::Initiation), 0);
    assert_eq!(world.nodes[A].numbers(), (1..=40).collect::<Vec<_>>());
}

#[test]
fn receiving_alone_renews_the_session_after_165_seconds() {
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    world.run_until(ESTABLISHED + secs(165) - DELAY - ms(1));
    world.send(B, A, 1).unwrap();
    world.run_for(secs(2));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    world.send(B, A, 2).unwrap();
    let sent = world.elapsed();
    world.run_for(secs(2));
    assert_eq!(world.times(A, Kind::Initiation)[1..], [sent + DELAY]);
    assert!(sent < ESTABLISHED + secs(170));
}

#[test]
fn nothing_is_lost_or_reordered_while_sessions_follow_each_other() {
    let mut world = World::pair();
    let packets = 6500;
    for number in 0..packets {
        world.send(A, B, number).unwrap();
        world.send(B, A, number).unwrap();
        world.run_for(ms(100));
    }
    world.run_for(secs(1));
    let expected: Vec<u64> = (0..packets).collect();
    assert_eq!(world.nodes[A].numbers(), expected);
    assert_eq!(world.nodes[B].numbers(), expected);
    assert_eq!(world.nodes[A].tunnel.drops().total() + world.nodes[B].tunnel.drops().total(), 0);
    let begun = world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation);
    assert!((6..=2 + 2 * 6).contains(&begun), "{begun}");
    assert!(world.nodes[A].stats().handshakes >= 6);
}

#[test]
fn the_old_session_opens_what_was_in_flight() {
    let mut world = World::settled_pair();
    world.run_until(ESTABLISHED + secs(119));
    world.cut.insert((A, B));
    world.send(A, B, 7).unwrap();
    let late = world.last_sent(A, Kind::Data);
    world.cut.clear();
    world.run_for(secs(2));
    world.send(A, B, 8).unwrap();
    world.run_for(secs(2));
    world.send(A, B, 9).unwrap();
    world.run_for(secs(2));
    assert_eq!(world.nodes[B].numbers(), [8, 9]);
    assert_ne!(late.bytes[4..8], world.last_sent(A, Kind::Data).bytes[4..8], "another session by now");
    let handshakes = world.nodes[B].stats().handshakes;
    assert!(world.deliver(B, &late).unwrap().is_some());
    assert_eq!(world.nodes[B].numbers(), [8, 9, 7]);
    assert_eq!(world.nodes[B].stats().handshakes, handshakes, "it confirms no session");
    world.send(B, A, 10).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [10], "and the newer session stays the one to send on");
}

#[test]
fn a_session_neither_opens_nor_seals_after_180_seconds() {
    for (age, opens) in [(ms(179_990), true), (ms(180_010), false), (ms(180_990), false), (secs(182), false)]
    {
        let mut world = World::pair();
        world.send(A, B, 0).unwrap();
        world.run_for(secs(1));
        world.cut.insert((A, B));
        world.send(A, B, 1).unwrap();
        let late = world.last_sent(A, Kind::Data);
        // B's side of the session is older than A's by one delay, because B answers before A receives the
        // response.
        world.cut.insert((B, A));
        world.sent.clear();
        let quiet = DELAY + age;
        world.run_until(quiet);
        let opened = world.deliver(B, &late);
        if opens {
            assert!(opened.unwrap().is_some());
            assert_eq!(world.send(B, A, 2), Ok(Outbound::Sealed));
        } else {
            let gone = [DropReason::NoSession, DropReason::UnknownReceiverIndex];
            assert!(opened.is_err_and(|reason| gone.contains(&reason)), "{age:?}");
            assert_eq!(world.send(B, A, 2), Ok(Outbound::Staged));
        }
    }
}

#[test]
fn a_peer_that_was_idle_for_long_gets_a_new_session() {
    for idle in [170, 179, 180, 181, 200, 541, 4000] {
        for first in [A, B] {
            let mut world = World::settled_pair();
            world.run_for(secs(idle));
            world.send(first, 1 - first, 1).unwrap();
            world.run_for(secs(1));
            assert_eq!(world.nodes[1 - first].numbers(), [1], "{first} after {idle} s");
            assert!(world.passes_both_ways(2), "{first} after {idle} s");
        }
    }
}

#[test]
fn handshakes_that_fail_do_not_end_a_session_that_still_works() {
    let mut world = World::settled_pair();
    world.run_until(secs(121));
    // B's answers are lost, A's packets arrive.
    world.cut.insert((B, A));
    for number in 0..40 {
        world.send(A, B, number).unwrap();
        world.run_for(secs(1));
    }
    assert!(world.count(A, Kind::Initiation) >= 7);
    let numbers = world.nodes[B].numbers();
    assert!(numbers.len() >= 30, "{numbers:?}");
    world.cut.clear();
    world.run_for(secs(8));
    assert!(world.passes_both_ways(99));
}

#[test]
fn an_initiation_that_was_never_answered_does_not_cost_a_later_session() {
    let mut world = World::pair();
    world.send(A, B, 0).unwrap();
    world.run_for(DELAY + ms(10));
    // B has answered; A's first message on the session is late, so that B starts a handshake too, which is
    // not answered.
    world.network.delay = secs(6);
    world.run_for(secs(1));
    world.network.delay = DELAY;
    world.send(B, A, 0).unwrap();
    world.run_for(ms(3900));
    assert_eq!(world.count(B, Kind::Initiation), 0);
    world.cut.extend([(A, B), (B, A)]);
    world.run_for(secs(1));
    world.cut.clear();
    assert_eq!(world.count(B, Kind::Initiation), 1);
    world.run_for(secs(2));
    assert_eq!(world.nodes[A].numbers(), [0]);
    for number in 1..1500 {
        world.send(A, B, number).unwrap();
        world.send(B, A, number).unwrap();
        world.run_for(ms(100));
    }
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), (0..1500).collect::<Vec<_>>());
    assert_eq!(world.nodes[B].numbers(), (0..1500).collect::<Vec<_>>());
}
