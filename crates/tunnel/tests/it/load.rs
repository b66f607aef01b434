//! Handshake floods: who has to prove its address, and who gets through.

use std::net::SocketAddr;

use weft_tunnel::{ControlQueue, DropReason};

use crate::sim::{A, B, Datagram, Kind, World, ms, secs};

/// How many handshake messages a second are worked on without a cookie.
const UNPROVEN_PER_SECOND: usize = 200;

fn source(host: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, host], 1000))
}

/// A pair whose B is idle, and an initiation to B from somewhere else that it has answered already.
fn pair_and_old_initiation() -> (World, Datagram) {
    let mut world = World::pair();
    world.send(A, B, 1).unwrap();
    world.run_for(secs(300));
    let initiation = Datagram { source: source(1), ..world.last_sent(A, Kind::Initiation) };
    world.sent.clear();
    (world, initiation)
}

fn flood(world: &mut World, datagram: &Datagram, times: usize) -> Vec<DropReason> {
    (0..times).map(|_| world.deliver(B, datagram).unwrap_err()).collect()
}

#[test]
fn more_than_200_handshake_messages_a_second_are_answered_with_cookies() {
    let (mut world, initiation) = pair_and_old_initiation();
    let reasons = flood(&mut world, &initiation, UNPROVEN_PER_SECOND + 50);
    assert_eq!(reasons[..UNPROVEN_PER_SECOND], [DropReason::ReplayedHandshake; UNPROVEN_PER_SECOND]);
    assert_eq!(reasons[UNPROVEN_PER_SECOND..], [DropReason::CookieRequired; 50]);
    assert_eq!(world.nodes[B].stats().cookies_sent, 50);
    assert_eq!(world.count(B, Kind::Cookie), 50);
    assert_eq!(world.sent.len(), 50, "nothing but cookie replies, 64 bytes for 148");
    assert!(world.sent.iter().all(|sent| sent.datagram.destination == source(1)));
    assert!(world.sent.iter().all(|sent| sent.source == Some(world.nodes[B].address.ip())));

    world.run_for(secs(1));
    assert_eq!(
        flood(&mut world, &initiation, 1),
        [DropReason::ReplayedHandshake],
        "a second later it is over"
    );
}

#[test]
fn an_initiator_with_a_cookie_gets_through_on_its_retry() {
    let (mut world, initiation) = pair_and_old_initiation();
    flood(&mut world, &initiation, 300);
    world.send(A, B, 2).unwrap();
    let begun = world.elapsed();
    while world.elapsed() < begun + secs(6) {
        // 500 a second: of every second's first 200, none is A's.
        world.run_for(ms(1));
        flood(&mut world, &initiation, 1);
        if world.elapsed().as_millis() % 1000 == 0 {
            flood(&mut world, &initiation, UNPROVEN_PER_SECOND);
        }
    }
    let initiations = world.times(A, Kind::Initiation);
    assert_eq!(initiations.len(), 2, "{initiations:?}");
    assert!(initiations[1] - begun <= ms(5334));
    let to_a = world.nodes[A].address;
    let cookies = world.sent.iter().filter(|sent| {
        sent.from == B && sent.datagram.kind() == Kind::Cookie && sent.datagram.destination == to_a
    });
    assert_eq!(cookies.count(), 1);
    assert_eq!(world.nodes[B].numbers(), [1, 2]);
    assert_eq!(world.nodes[B].dropped(DropReason::HandshakeRateLimited), 0);
}

#[test]
fn a_source_with_a_cookie_gets_its_share_and_no_more() {
    let (mut world, initiation) = pair_and_old_initiation();
    flood(&mut world, &initiation, 300);
    world.send(A, B, 2).unwrap();
    world.run_for(secs(5));
    flood(&mut world, &initiation, 300);
    world.run_for(ms(500));
    assert_eq!(world.count(A, Kind::Initiation), 2);
    let proven = world.last_sent(A, Kind::Initiation);
    assert_ne!(proven.bytes[132..], [0; 16], "it has a mac2");
    world.run_for(secs(2));
    flood(&mut world, &initiation, 300);
    let reasons = flood(&mut world, &proven, 20);
    assert_eq!(reasons[..5], [DropReason::ReplayedHandshake; 5]);
    assert_eq!(reasons[5..], [DropReason::HandshakeRateLimited; 15]);

    let stolen = Datagram { source: source(2), ..proven };
    assert_eq!(flood(&mut world, &stolen, 1), [DropReason::CookieRequired], "a cookie proves one address");
}

#[test]
fn a_wrong_mac1_is_no_load() {
    let (mut world, initiation) = pair_and_old_initiation();
    let mut wrong = initiation.clone();
    wrong.bytes[120] ^= 1;
    let reasons = flood(&mut world, &wrong, 10 * UNPROVEN_PER_SECOND);
    assert!(reasons.iter().all(|reason| *reason == DropReason::InvalidMac));
    assert_eq!(flood(&mut world, &initiation, 20), [DropReason::ReplayedHandshake; 20]);
    assert_eq!(world.nodes[B].stats().cookies_sent, 0);
    world.send(A, B, 2).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1, 2]);
}

#[test]
fn a_flood_does_not_touch_sessions() {
    let mut world = World::settled_pair();
    world.run_until(secs(121));
    world.send(A, B, 1).unwrap();
    world.run_for(secs(20));
    let initiation = Datagram { source: source(1), ..world.last_sent(A, Kind::Initiation) };
    for number in 2..40 {
        flood(&mut world, &initiation, 100);
        world.send(A, B, number).unwrap();
        world.send(B, A, number).unwrap();
        world.run_for(ms(100));
    }
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), (1..40).collect::<Vec<_>>());
    assert_eq!(world.nodes[A].numbers(), (2..40).collect::<Vec<_>>());
    assert_eq!(world.endpoint(B, A), Some(world.nodes[A].address));
}

#[test]
fn a_cookie_reply_that_answers_nothing_is_refused() {
    let (mut world, initiation) = pair_and_old_initiation();
    flood(&mut world, &initiation, 300);
    world.send(A, B, 2).unwrap();
    world.run_for(ms(200));
    let cookie = world.last_sent(B, Kind::Cookie);
    assert!(world.deliver(A, &cookie).is_ok(), "the last message is still the one it answers");
    let mut other = cookie.clone();
    other.bytes[40] ^= 1;
    assert_eq!(world.deliver(A, &other), Err(DropReason::InvalidTag));
    world.run_for(secs(10));
    assert_eq!(world.nodes[B].numbers(), [1, 2]);
    assert_eq!(world.deliver(A, &cookie), Err(DropReason::NoSession), "it is another message by now");
}

#[test]
fn a_handshake_that_finds_no_slot_for_its_answer_is_dropped_and_may_come_again() {
    let mut world = World::settled_pair();
    world.run_for(secs(600));
    let full = std::mem::replace(&mut world.nodes[B].control, ControlQueue::new(0));
    world.send(A, B, 1).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].dropped(DropReason::ControlQueueFull), 1);
    assert_eq!(world.nodes[B].tunnel.poll_timeout(), None, "nothing came of it");
    let initiation = world.last_sent(A, Kind::Initiation);
    world.nodes[B].control = full;
    assert_eq!(world.deliver(B, &initiation), Ok(None), "the very same");
    world.run_for(secs(1));
    assert_eq!(world.nodes[B].numbers(), [1]);
}
