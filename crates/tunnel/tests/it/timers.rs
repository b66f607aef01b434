//! Silence and keepalives; an idle tunnel causes no wake-ups.

use std::net::SocketAddr;

use weft_tunnel::{ControlQueue, PeerConfig, PeerSettings, PrivateKey, Progress, WakeReason};

use crate::sim::{A, B, DELAY, Kind, PeerOptions, World, inner_v4, ms, secs};

#[test]
fn data_without_an_answer_begins_a_handshake_after_15_seconds() {
    let mut world = World::settled_pair();
    world.cut.insert((B, A));
    let sent = world.elapsed();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(3));
    world.send(A, B, 2).unwrap();
    world.run_for(secs(30));
    let begun = world.times(A, Kind::Initiation);
    let silence = begun[0] - sent;
    assert!(
        silence >= secs(15) && silence <= ms(15_334),
        "{silence:?} since the first that was not answered"
    );
    assert!(begun[1] - begun[0] >= secs(5));
    world.cut.clear();
    world.run_for(secs(6));
    assert!(world.passes_both_ways(3));
}

#[test]
fn an_answer_of_any_kind_ends_the_silence() {
    let mut world = World::settled_pair();
    for number in 0..30 {
        world.send(A, B, number).unwrap();
        world.run_for(secs(2));
    }
    assert_eq!(world.count(A, Kind::Initiation) + world.count(B, Kind::Initiation), 0);
    assert_eq!(world.nodes[B].numbers().len(), 30);
    assert!(world.count(B, Kind::Keepalive) >= 5, "one at least every 12 s");
}

#[test]
fn data_without_answer_packets_is_answered_with_one_keepalive_after_10_seconds() {
    let mut world = World::settled_pair();
    let sent = world.elapsed();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(4));
    world.send(A, B, 2).unwrap();
    world.run_for(secs(60));
    assert_eq!(world.times(B, Kind::Keepalive), [sent + DELAY + secs(10)]);
    assert_eq!(world.count(A, Kind::Keepalive), 0, "a keepalive is not answered");
}

#[test]
fn data_that_is_answered_needs_no_keepalive() {
    let mut world = World::settled_pair();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(9));
    world.send(B, A, 2).unwrap();
    let answered = world.elapsed();
    world.run_for(secs(60));
    assert_eq!(world.count(B, Kind::Keepalive), 0);
    assert_eq!(world.times(A, Kind::Keepalive), [answered + DELAY + secs(10)]);
}

#[test]
fn a_persistent_keepalive_begins_at_once_and_comes_every_interval() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(25), ..Default::default() }, PeerOptions::default());
    world.run_for(secs(110));
    assert_eq!(world.times(A, Kind::Initiation), [ms(0)]);
    let established = 2 * DELAY;
    let expected: Vec<_> = (0..5).map(|i| established + secs(25) * i).collect();
    assert_eq!(world.times(A, Kind::Keepalive), expected);
    assert_eq!(world.count(B, Kind::Keepalive), 0, "one end's keepalives are not the other's");

    let sent = world.elapsed();
    world.send(A, B, 1).unwrap();
    world.run_until(sent + secs(24));
    assert_eq!(world.count(A, Kind::Keepalive), expected.len(), "data holds the mapping open too");
}

#[test]
fn a_persistent_keepalive_keeps_a_session_at_hand_for_hours() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(25), ..Default::default() }, PeerOptions::default());
    for _ in 0..240 {
        world.run_for(secs(30));
        let peer = world.nodes[B].public_key();
        let age = world.now - world.nodes[A].peer(&peer).last_handshake.unwrap();
        assert!(age <= secs(120 + 25 + 25), "{age:?}");
    }
    assert_eq!(world.send(B, A, 1), Ok(weft_tunnel::Outbound::Sealed));
}

#[test]
fn a_persistent_keepalive_makes_it_try_for_ever() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(25), ..Default::default() }, PeerOptions::default());
    world.cut.insert((A, B));
    world.run_for(secs(3600));
    let gap = world.times(A, Kind::Initiation).windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(gap <= secs(25), "{gap:?}");
    world.cut.clear();
    world.run_for(secs(25));
    assert!(world.passes_both_ways(1));
}

#[test]
fn an_idle_tunnel_stops_waking() {
    for traffic in [[true, false], [false, true], [true, true]] {
        let mut world = World::settled_pair();
        for number in 0..100 {
            for node in [A, B] {
                if traffic[node] {
                    world.send(node, 1 - node, number).unwrap();
                }
            }
            world.run_for(secs(1));
        }
        for node in &mut world.nodes {
            node.wakes = 0;
        }
        world.sent.clear();
        world.run_for(secs(3600));
        for node in [A, B] {
            assert!(world.nodes[node].wakes <= 8, "{} wake-ups", world.nodes[node].wakes);
            assert_eq!(world.nodes[node].tunnel.poll_timeout(), None);
        }
        let talk = world.sent.len();
        assert!(talk <= 4, "{talk} datagrams of a tunnel that has nothing to say");
    }
}

#[test]
fn what_a_handshake_left_behind_is_wiped_after_three_times_the_life_of_a_session() {
    let mut world = World::settled_pair();
    let began = world.now - world.elapsed();
    world.run_for(secs(300));
    for node in [A, B] {
        let (at, reason) = world.nodes[node].tunnel.poll_timeout().unwrap();
        assert_eq!(reason, WakeReason::SessionExpiry);
        assert!(at - began > secs(540) && at - began < secs(543), "{:?}", at - began);
    }
    world.run_for(secs(300));
    assert!([A, B].iter().all(|node| world.nodes[*node].tunnel.poll_timeout().is_none()));
}

#[test]
fn a_tunnel_whose_peer_went_away_stops_waking() {
    let mut world = World::settled_pair();
    world.cut.extend([(A, B), (B, A)]);
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1000));
    assert_eq!(world.nodes[A].tunnel.poll_timeout(), None);
    let wakes = world.nodes[A].wakes;
    assert!(wakes <= 35, "{wakes}");
}

#[test]
fn a_call_that_is_early_does_nothing_and_loses_nothing() {
    let mut world = World::settled_pair();
    let sent = world.elapsed();
    world.send(A, B, 1).unwrap();
    for _ in 0..120 {
        world.run_for(ms(100));
        for node in [A, B] {
            world.pump(node);
        }
    }
    assert_eq!(world.times(B, Kind::Keepalive), [sent + DELAY + secs(10)]);
}

#[test]
fn an_initiation_that_waits_for_a_full_socket_gives_way_to_a_newer_one() {
    let mut world = World::pair();
    world.full.insert(A);
    world.send(A, B, 2).unwrap();
    world.run_for(secs(22));
    assert!(world.count(A, Kind::Initiation) == 0 && world.nodes[A].control.len() == 1);
    world.full.clear();
    world.run_for(4 * DELAY);
    assert_eq!(world.count(A, Kind::Initiation), 1);
    assert_eq!(world.nodes[B].numbers(), [2], "the session came with the first answer");
    let stats = world.nodes[A].stats();
    assert_eq!((stats.initiations_sent, stats.handshakes), (1, 1));
}

#[test]
fn an_initiation_that_waits_for_a_full_socket_goes_with_the_attempt_that_it_belongs_to() {
    let mut world = World::pair();
    world.full.insert(A);
    world.send(A, B, 1).unwrap();
    world.run_for(secs(100));
    assert_eq!(world.nodes[A].control.len(), 0, "the attempt has ended");
    world.full.clear();
    world.send(A, B, 2).unwrap();
    world.run_for(4 * DELAY);
    // Of two at once, B answers the first one, which A does not know any more.
    assert_eq!((world.count(A, Kind::Initiation), world.nodes[B].numbers()), (1, vec![2]));
}

#[test]
fn of_the_responses_and_keepalives_that_wait_for_a_full_socket_the_newest_one_is_left() {
    let mut world =
        World::pair_with(PeerOptions { keepalive: Some(5), ..Default::default() }, PeerOptions::default());
    world.full.insert(B);
    world.run_for(secs(22));
    assert!(world.count(A, Kind::Initiation) >= 4);
    assert_eq!(world.nodes[B].control.len(), 1, "responses");
    world.full.clear();
    world.run_for(4 * DELAY);
    assert_eq!((world.count(B, Kind::Response), world.nodes[B].stats().responses_sent), (1, 1));
    assert_eq!(world.nodes[A].stats().handshakes, 1, "the response is to the last initiation");

    let before = world.count(A, Kind::Keepalive);
    world.full.insert(A);
    world.run_for(secs(62));
    assert_eq!(world.nodes[A].control.len(), 1, "keepalives");
    world.full.clear();
    world.run_for(4 * DELAY);
    assert_eq!(world.count(A, Kind::Keepalive), before + 1);
}

#[test]
fn timers_wait_for_slots_in_the_control_queue_and_none_is_lost() {
    let mut world = World::of(1);
    for other in 1..=5_u8 {
        world.insert(
            A,
            PeerConfig {
                public_key: PrivateKey::generate().unwrap().public_key(),
                endpoint: Some(SocketAddr::from(([203, 0, 113, other], 51820))),
                allowed_ips: vec![inner_v4(usize::from(other)).into()],
                settings: PeerSettings {
                    persistent_keepalive: std::num::NonZeroU16::new(25),
                    ..PeerSettings::default()
                },
            },
        );
    }
    let now = world.now;
    let tunnel = &mut world.nodes[A].tunnel;
    let mut control = ControlQueue::new(2);
    let mut destinations = Vec::new();
    let mut blocked = 0;
    loop {
        let progress = tunnel.handle_timeout(now, &mut control);
        if progress == Progress::Done {
            break;
        }
        blocked += 1;
        assert!(tunnel.poll_timeout().is_some_and(|(at, _)| at <= now), "still due");
        assert_eq!(tunnel.handle_timeout(now, &mut control), Progress::Blocked, "nothing changed");
        while let Some(message) = control.pop() {
            assert_eq!(message.transmit().contents.len(), 148);
            destinations.push(message.transmit().destination);
        }
    }
    while let Some(message) = control.pop() {
        destinations.push(message.transmit().destination);
    }
    assert!(blocked >= 2, "two peers at a time: {blocked}");
    destinations.sort();
    let expected: Vec<_> = (1..=5).map(|other| SocketAddr::from(([203, 0, 113, other], 51820))).collect();
    assert_eq!(destinations, expected);
}
