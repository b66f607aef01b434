//! How a session is established.

use weft_tunnel::{DropReason, Event, Outbound};

use crate::sim::{A, B, DELAY, Kind, Network, PeerOptions, World, ms, secs};

#[test]
fn one_handshake_carries_the_packets_that_waited_for_it_in_order() {
    let mut world = World::pair();
    for number in 1..=9 {
        assert_eq!(world.send(A, B, number), Ok(Outbound::Staged));
    }
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((world.count(A, Kind::Initiation), world.count(B, Kind::Initiation)), (1, 0));
    assert_eq!(world.times(A, Kind::Initiation), [ms(0)], "it began at once");
    assert_eq!(world.times(B, Kind::Response), [DELAY]);
    assert_eq!(world.times(A, Kind::Data), [2 * DELAY; 9]);
    let key = world.nodes[B].public_key();
    assert_eq!(world.nodes[A].events, [Event::HandshakeComplete { peer: key }]);
    assert_eq!(world.nodes[B].events, [Event::HandshakeComplete { peer: world.nodes[A].public_key() }]);
    assert_eq!((world.nodes[A].stats().handshakes, world.nodes[B].stats().handshakes), (1, 1));
    let sent =
        |node: usize| (world.nodes[node].stats().initiations_sent, world.nodes[node].stats().responses_sent);
    assert_eq!((sent(A), sent(B)), ((1, 0), (0, 1)));
    assert_eq!(world.nodes[A].stats().sealed, 9);
    assert_eq!(world.nodes[B].stats().opened, 9);
}

#[test]
fn packets_sent_while_a_handshake_is_under_way_stay_in_order_with_later_ones() {
    let mut world = World::pair();
    for number in 0..60 {
        world.send(A, B, number).unwrap();
        world.run_for(ms(5));
    }
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), (0..60).collect::<Vec<_>>());
    assert_eq!(world.count(A, Kind::Initiation), 1);
}

#[test]
fn a_responder_sends_only_after_it_heard_the_initiator_on_the_new_session() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.run_for(DELAY + ms(10));
    assert_eq!(world.count(B, Kind::Response), 1);
    for number in [11, 12, 13] {
        assert_eq!(world.send(B, A, number), Ok(Outbound::Staged));
    }
    world.run_for(secs(1));
    assert_eq!(world.times(B, Kind::Data), [3 * DELAY; 3]);
    assert_eq!(world.nodes[A].numbers(), [11, 12, 13]);
    assert_eq!(world.count(B, Kind::Initiation), 0);
}

#[test]
fn a_responder_that_is_never_confirmed_begins_a_handshake_of_its_own() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.run_for(DELAY + ms(10));
    world.cut.insert((A, B));
    world.send(B, A, 11).unwrap();
    world.run_for(secs(2));
    assert!(world.nodes[A].numbers().is_empty());
    world.cut.clear();
    world.run_until(DELAY + secs(5) - ms(1));
    assert_eq!(world.count(B, Kind::Initiation), 0, "no handshake message within 5 s of another");
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [11]);
    assert!(world.passes_both_ways(99));
}

#[test]
fn a_keepalive_alone_confirms_a_session() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(25), ..Default::default() }, PeerOptions::default());
    world.run_for(secs(1));
    assert_eq!(world.count(A, Kind::Initiation), 1);
    assert_eq!(world.send(B, A, 5), Ok(Outbound::Sealed));
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [5]);
    assert_eq!(world.count(B, Kind::Initiation), 0);
}

#[test]
fn only_the_peer_begins_while_its_endpoint_is_unknown() {
    let mut world =
        World::pair_with(PeerOptions::default(), PeerOptions { hides_endpoint: true, ..Default::default() });
    assert_eq!(world.send(B, A, 1), Err(DropReason::NoEndpoint));
    world.send(A, B, 2).unwrap();
    world.run_for(secs(1));
    world.send(B, A, 3).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[A].numbers(), [3]);
    assert_eq!(world.nodes[B].numbers(), [2]);
}

#[test]
fn two_ends_that_begin_at_once_agree() {
    for skew in [0, 1, 25, 49, 50, 51, 99, 100] {
        let mut world = World::pair();
        world.send(A, B, 1).unwrap();
        world.run_for(ms(skew));
        world.send(B, A, 2).unwrap();
        world.run_for(ms(900));
        assert_eq!(world.nodes[A].numbers(), [2], "skew {skew}");
        assert_eq!(world.nodes[B].numbers(), [1], "skew {skew}");
        for number in 10..110 {
            assert!(world.passes_both_ways(number), "skew {skew}, number {number}");
        }
        let initiations = world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation);
        assert!(initiations <= 2, "skew {skew}: {initiations}");
        for node in [A, B] {
            assert!(world.nodes[node].stats().handshakes <= 2, "sessions do not flap");
        }
    }
}

#[test]
fn a_handshake_is_repeated_every_5_seconds_and_given_up_after_90() {
    let mut world = World::pair();
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    world.send(A, B, 2).unwrap();
    world.run_for(secs(300));
    let times = world.times(A, Kind::Initiation);
    assert!((17..=18).contains(&times.len()), "{times:?}");
    for pair in times.windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap >= secs(5) && gap <= ms(5334), "{gap:?}");
    }
    assert!(*times.last().unwrap() < secs(90));
    let peer = world.nodes[B].public_key();
    let unanswered = |initiations| Event::HandshakeUnanswered { peer, initiations };
    let told = [unanswered(3), unanswered(9), unanswered(15), Event::HandshakeFailed { peer }];
    assert_eq!(world.nodes[A].events, told);
    assert_eq!(world.nodes[A].dropped(DropReason::HandshakeTimeout), 2);
    assert_eq!(world.nodes[A].stats().handshakes_timed_out, 1);
    assert_eq!((world.nodes[A].stats().staged_bytes, world.nodes[A].stats().staged_segments), (0, 0));
    assert_eq!(world.nodes[A].tunnel.poll_timeout(), None);

    world.cut.clear();
    world.send(A, B, 3).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [3], "it starts again when there is something to send");
    assert!(world.passes_both_ways(4));
}

#[test]
fn initiations_differ_in_their_jitter() {
    let mut world = World::pair();
    world.cut.extend([(A, B), (B, A)]);
    // Packets that come meanwhile change nothing.
    for _ in 0..60 {
        world.send(A, B, 1).unwrap();
        world.send(B, A, 1).unwrap();
        world.run_for(secs(1));
    }
    let (a, b) = (world.times(A, Kind::Initiation), world.times(B, Kind::Initiation));
    assert_ne!(a, b, "two ends would collide for ever");
    let gaps: std::collections::BTreeSet<_> = a.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > 5, "{gaps:?}");
}

#[test]
fn a_session_that_gets_old_prolongs_no_attempt_to_renew_it() {
    let mut world = World::settled_pair();
    let established = world.elapsed() - secs(30) - ms(500);
    world.run_until(established + secs(166));
    world.cut.insert((A, B));
    // Each of these is data on a session of more than 165 seconds.
    for number in 1..=13 {
        world.send(B, A, number).unwrap();
        world.run_for(secs(1));
    }
    world.cut.insert((B, A));
    world.run_for(secs(300));
    let sent = world.times(A, Kind::Initiation);
    let (first, last) = (sent[0], sent[sent.len() - 1]);
    assert!(sent.len() > 15 && last - first < secs(90), "from {first:?} to {last:?}");
}

#[test]
fn a_new_packet_prolongs_the_attempt() {
    let mut world = World::pair();
    world.cut.insert((A, B));
    for number in 0..6 {
        world.send(A, B, number).unwrap();
        world.run_for(secs(30));
    }
    // Unanswered initiations are reported nevertheless.
    let peer = world.nodes[B].public_key();
    let told = [3, 9, 15, 21, 27, 33].map(|initiations| Event::HandshakeUnanswered { peer, initiations });
    assert_eq!(world.nodes[A].events, told);
    world.cut.clear();
    world.run_for(secs(6));
    assert_eq!(world.nodes[B].numbers(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_response_to_an_earlier_initiation_still_makes_a_session() {
    let mut world = World::pair();
    world.network = Network { delay: ms(2900), ..Network::PERFECT };
    world.send(A, B, 1).unwrap();
    world.run_for(secs(60));
    assert_eq!(world.nodes[B].numbers(), [1]);
    let begun = world.count(A, Kind::Initiation);
    assert!(begun <= 3, "{begun}");
    world.send(A, B, 2).unwrap();
    world.send(B, A, 3).unwrap();
    world.run_for(secs(10));
    assert_eq!(world.nodes[B].numbers(), [1, 2]);
    assert_eq!(world.nodes[A].numbers(), [3]);
    assert_eq!(world.count(A, Kind::Initiation), begun);
}

#[test]
fn a_lost_response_and_a_lost_keepalive_cost_a_retry_each() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.cut.insert((B, A));
    world.run_for(secs(1));
    assert_eq!(world.count(B, Kind::Response), 1);
    world.cut.clear();
    world.run_for(secs(5));
    assert_eq!(world.nodes[B].numbers(), [1]);
    assert!(world.passes_both_ways(2));
}

#[test]
fn packets_do_not_overtake_those_that_wait_still_when_the_session_is_there() {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.flushes = false;
    world.run_for(secs(1));
    assert!(world.nodes[A].tunnel.has_ready_staged());
    for number in 2..6 {
        assert_eq!(world.send(A, B, number), Ok(Outbound::Staged));
    }
    assert_eq!(world.count(A, Kind::Data), 0);
    world.flushes = true;
    assert_eq!(world.send(A, B, 6), Ok(Outbound::Sealed));
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_initiation_is_not_repeated_while_a_peer_that_was_answered_may_confirm() {
    let mut world = World::pair();
    world.network = Network { delay: ms(400), ..Network::PERFECT };
    world.cut.insert((A, B));
    world.send(A, B, 1).unwrap();
    world.run_for(ms(4550));
    world.cut.clear();
    world.send(B, A, 2).unwrap();
    world.run_for(secs(3));
    assert_eq!(world.nodes[B].numbers(), [1]);
    assert_eq!(world.nodes[A].numbers(), [2]);
    world.run_for(secs(60));
    assert_eq!(world.count(A, Kind::Initiation), 1, "nor later: the session needs no other");
    assert_eq!(world.count(B, Kind::Initiation), 1);
}

#[test]
fn a_responder_never_sends_on_an_unconfirmed_session() {
    let mut world = World::settled_pair();
    world.cut.insert((B, A));
    world.send(A, B, 1).unwrap();
    // As many responses as boringtun keeps sessions: the last one takes the slot of the session in use.
    while world.count(B, Kind::Response) < 8 {
        world.run_for(secs(1));
    }
    assert_eq!(world.send(B, A, 2), Ok(Outbound::Staged));
    world.run_for(secs(1));
    assert_eq!(world.count(B, Kind::Data), 0);
    world.cut.clear();
    world.run_for(secs(6));
    assert_eq!(world.nodes[A].numbers(), [2]);
}

/// With a shared index, an observer could follow a peer that moves from one network to another.
#[test]
fn each_handshake_has_an_index_of_its_own_in_all_bits() {
    let mut world = World::pair();
    for number in 0..40 {
        world.send(A, B, number).unwrap();
        world.send(B, A, number).unwrap();
        world.run_for(secs(60));
    }
    let senders = |from: usize, kind: Kind| -> Vec<u32> {
        let sent = world.sent.iter().filter(|sent| sent.from == from && sent.datagram.kind() == kind);
        sent.map(|sent| u32::from_le_bytes(*sent.datagram.bytes[4..].first_chunk().unwrap())).collect()
    };
    for (from, kind) in [(A, Kind::Initiation), (B, Kind::Response)] {
        let indices = senders(from, kind);
        assert!(indices.len() >= 10, "{}", indices.len());
        let prefixes: std::collections::HashSet<u32> = indices.iter().map(|index| index >> 8).collect();
        assert_eq!(prefixes.len(), indices.len(), "no two share their high 24 bits: {indices:x?}");
        let lows: std::collections::HashSet<u32> = indices.iter().map(|index| index & 0xff).collect();
        assert!(lows.len() > indices.len() / 2, "and the low ones do not count");
        assert!(!indices.windows(2).all(|pair| (pair[1] & 0xff) == (pair[0] + 1) & 0xff));
    }
    // The indices of ended sessions are released.
    world.run_for(secs(600));
    for node in [A, B] {
        assert_eq!(world.nodes[node].tunnel.receiver_indices().count(), 0);
    }
}
