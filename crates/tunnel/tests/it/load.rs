//! Handshake floods: who has to prove its address, and who gets through.

use std::net::SocketAddr;
use std::time::Duration;

use weft_tunnel::{
    ControlQueue, DropReason, Ecn, Offload, PacketMut, PeerBuilder, PeerConfig, PrivateKey, TAILROOM,
    TransmitQueue, Tunnel, TunnelConfig,
};

use crate::sim::{A, B, Datagram, Kind, World, ms, secs, udp};

/// How many handshake messages a second are worked on without a cookie, and at once where there are few peers.
const UNPROVEN_PER_SECOND: usize = 200;
/// How many at once at most, after a quiet time.
const MAX_BURST: usize = 2000;

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

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

/// Time passes, and every millisecond has one more of it than there is room for.
fn run_under_flood(world: &mut World, datagram: &Datagram, time: Duration) {
    flood(world, datagram, MAX_BURST + 100);
    let end = world.elapsed() + time;
    while world.elapsed() < end {
        world.run_for(ms(1));
        flood(world, datagram, 1);
    }
}

/// Makes a peer of B, and gives the initiation that it begins with.
fn new_initiator(world: &mut World, number: u16) -> Datagram {
    let [high, low] = number.to_be_bytes();
    let peer = |public_key, endpoint, prefix: String| PeerConfig {
        public_key,
        preshared_key: None,
        endpoint,
        allowed_ips: vec![prefix.parse().unwrap()],
        persistent_keepalive: None,
    };
    let (now, b) = (world.now, world.nodes[B].address);
    let key = PrivateKey::generate().unwrap();
    world.insert(B, peer(key.public_key(), None, format!("10.1.{high}.{low}/32")));
    let about_b = peer(world.nodes[B].public_key(), Some(b), "0.0.0.0/0".to_owned());
    let new = PeerBuilder::new(&key).build(about_b);
    let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
    tunnel.insert_peer(new, now).map_err(|(error, _)| error).unwrap();
    let mut bytes = udp("10.1.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap(), b"hello");
    let len = bytes.len();
    bytes.resize(len + TAILROOM, 0);
    let mut packet = PacketMut::new(&mut bytes, len, Offload::None).unwrap();
    let mut control = ControlQueue::new(4);
    tunnel.handle_tun_packet(&mut packet, now, &mut TransmitQueue::new(8)).unwrap();
    let _ = tunnel.handle_timeout(now, &mut control);
    let bytes = control.pop().unwrap().transmit().contents.to_vec();
    let source = SocketAddr::from(([198, 18, high, low], 51820));
    Datagram { source, destination: b, ecn: Ecn::NotEct, bytes }
}

/// How many of a flood were worked on; all others were answered with cookies.
fn worked_on(reasons: &[DropReason]) -> usize {
    let worked_on = reasons.iter().filter(|reason| **reason == DropReason::ReplayedHandshake).count();
    let asked = reasons.iter().filter(|reason| **reason == DropReason::CookieRequired).count();
    assert_eq!(worked_on + asked, reasons.len());
    worked_on
}

#[test]
fn a_thousand_peers_that_begin_at_once_after_a_quiet_time_are_all_answered() {
    let mut world = World::of(2);
    let begun: Vec<Datagram> = (0..1000).map(|number| new_initiator(&mut world, number)).collect();
    for initiation in &begun {
        assert_eq!(world.deliver(B, initiation), Ok(None));
    }
    assert_eq!((world.count(B, Kind::Response), world.count(B, Kind::Cookie)), (1000, 0));

    // As much again for handshakes that B itself would have begun, and then whoever comes has to show a cookie.
    let reasons = flood(&mut world, &begun[0], 1500);
    assert_eq!(worked_on(&reasons[..1000]), 1000);
    assert_eq!(worked_on(&reasons[1000..]), 0);
}

#[test]
fn a_sustained_flood_gets_the_burst_once_and_then_its_rate() {
    let mut world = World::of(2);
    let begun: Vec<Datagram> = (0..1200).map(|number| new_initiator(&mut world, number)).collect();
    let initiation = begun[0].clone();
    assert_eq!(world.deliver(B, &initiation), Ok(None));
    let at_once = flood(&mut world, &initiation, 3 * MAX_BURST);
    assert_eq!(worked_on(&at_once), MAX_BURST - 1, "1,200 peers would be 2,400");

    let mut flood_for = |time: Duration| {
        let mut worked = 0;
        let end = world.elapsed() + time;
        while world.elapsed() < end {
            world.run_for(ms(1));
            worked += worked_on(&flood(&mut world, &initiation, 2));
        }
        let cookies = world.nodes[B].stats().cookies_sent;
        world.run_for(secs(4));
        (worked, cookies)
    };
    let (worked, cookies) = flood_for(secs(10));
    assert_eq!(worked, 10 * UNPROVEN_PER_SECOND);
    assert_eq!(cookies as usize, 3 * MAX_BURST - (MAX_BURST - 1) + 20_000 - worked);
    // Four quiet seconds later there is what these left, and no more.
    let (worked, _) = flood_for(secs(2));
    assert_eq!(worked, (4 + 2) * UNPROVEN_PER_SECOND);
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
    // What A sends does not arrive just when another one is due.
    run_under_flood(&mut world, &initiation, ms(3));
    world.run_for(us(500));
    world.send(A, B, 2).unwrap();
    let begun = world.elapsed();
    world.run_for(us(500));
    run_under_flood(&mut world, &initiation, secs(6));
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
    run_under_flood(&mut world, &initiation, ms(3));
    world.run_for(us(500));
    world.send(A, B, 2).unwrap();
    world.run_for(us(500));
    run_under_flood(&mut world, &initiation, secs(6));
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
    run_under_flood(&mut world, &initiation, ms(3));
    world.run_for(us(500));
    world.send(A, B, 2).unwrap();
    world.run_for(us(500));
    run_under_flood(&mut world, &initiation, ms(200));
    let to_a = world.nodes[A].address;
    let mut cookies = world.sent.iter().map(|sent| &sent.datagram).filter(|sent| sent.kind() == Kind::Cookie);
    let cookie = cookies.rfind(|sent| sent.destination == to_a).unwrap().clone();
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
