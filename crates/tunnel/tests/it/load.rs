//! Handshake floods: which senders have to prove their address, which get through, and how much work it
//! costs.

mod absent_peers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use weft_tunnel::{
    ControlQueue, DropReason, Ecn, Offload, PacketMut, PeerConfig, PeerSettings, PlainSlab, PrivateKey,
    RecvMeta, TAILROOM, TransmitQueue, Tunnel, TunnelConfig,
};

use crate::sim::{A, B, C, Datagram, Kind, World, ms, secs, udp};

/// More replays at once than the budget allows with few peers.
const FLOOD: usize = 2000;

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn source(host: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, host], 1000))
}

/// A pair with an idle B, and an initiation from another address that B has answered already.
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

fn count(reasons: &[DropReason], reason: DropReason) -> usize {
    reasons.iter().filter(|other| **other == reason).count()
}

/// Runs for `time`, and floods B in every millisecond with more initiations than it has budget for.
fn run_under_flood(world: &mut World, datagram: &Datagram, time: Duration) {
    flood(world, datagram, FLOOD);
    let end = world.elapsed() + time;
    while world.elapsed() < end {
        world.run_for(ms(1));
        flood(world, datagram, 20);
    }
}

/// Runs `what`, and returns the nominal time that B spends on handshakes meanwhile.
fn work(world: &mut World, what: impl FnOnce(&mut World)) -> Duration {
    let so_far = |world: &World| world.nodes[B].tunnel.handshake_load(world.now).work;
    let before = so_far(world);
    what(world);
    so_far(world) - before
}

/// A tunnel outside of the world that attempts a handshake with B.
struct Initiator {
    tunnel: Tunnel,
    source: SocketAddr,
    to: SocketAddr,
    control: ControlQueue,
}

impl Initiator {
    /// Creates an initiator that is no peer of B.
    fn stranger(world: &World, source: SocketAddr) -> Self {
        Self::with_key(world, source, PrivateKey::generate().unwrap())
    }

    fn with_key(world: &World, source: SocketAddr, key: PrivateKey) -> Self {
        let to = world.nodes[B].address;
        let mut tunnel = Tunnel::new(key, TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 });
        let about_b = peer(world.nodes[B].public_key(), Some(to), "0.0.0.0/0");
        tunnel.insert_peer(about_b, world.now).unwrap();
        Self { tunnel, source, to, control: ControlQueue::new(4) }
    }

    /// Returns the initiation that is due: the first, or the next retry.
    fn initiation(&mut self, world: &World) -> Option<Datagram> {
        let mut bytes = udp("10.1.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap(), b"hello");
        let len = bytes.len();
        bytes.resize(len + TAILROOM, 0);
        let mut packet = PacketMut::new(&mut bytes, len, Offload::None).unwrap();
        let _ = self.tunnel.handle_tun_packet(&mut packet, world.now, &mut TransmitQueue::new(8));
        let _ = self.tunnel.handle_timeout(world.now, &mut self.control);
        let bytes = self.control.pop()?.transmit().contents.to_vec();
        Some(Datagram { source: self.source, destination: self.to, ecn: Ecn::NotEct, bytes })
    }

    /// Handles B's newest answer to this initiator. Returns true if it was a response.
    fn hear(&mut self, world: &mut World) -> bool {
        let answer = world.sent.iter().rev().find(|sent| sent.datagram.destination == self.source);
        let Some(mut answer) = answer.map(|sent| sent.datagram.clone()) else { return false };
        let len = answer.bytes.len();
        let meta =
            RecvMeta { source: self.to, local: Some(self.source.ip()), ecn: Ecn::NotEct, len, stride: len };
        let mut plain = PlainSlab::new(1 << 16);
        let taken =
            self.tunnel.handle_datagram(&meta, &mut answer.bytes, world.now, &mut plain, &mut self.control);
        taken.is_ok() && answer.kind() == Kind::Response
    }
}

fn peer(public_key: weft_tunnel::PublicKey, endpoint: Option<SocketAddr>, prefix: &str) -> PeerConfig {
    PeerConfig {
        public_key,
        endpoint,
        allowed_ips: vec![prefix.parse().unwrap()],
        settings: PeerSettings::default(),
    }
}

/// Adds a new peer to B, and returns the peer's first initiation.
fn new_initiator(world: &mut World, number: u16) -> Datagram {
    let [high, low] = number.to_be_bytes();
    let key = PrivateKey::generate().unwrap();
    world.insert(B, peer(key.public_key(), None, &format!("10.1.{high}.{low}/32")));
    let source = SocketAddr::from(([198, 18, high, low], 51820));
    Initiator::with_key(world, source, key).initiation(world).unwrap()
}

/// Attempts a session with B while `flood_for_a_millisecond` runs, and returns the number of initiations it
/// took.
fn initiations_needed(
    world: &mut World,
    mut flood_for_a_millisecond: impl FnMut(&mut World),
) -> Option<usize> {
    let key = PrivateKey::generate().unwrap();
    world.insert(B, peer(key.public_key(), None, "10.9.9.9/32"));
    let mut stranger = Initiator::with_key(world, SocketAddr::from(([198, 51, 100, 77], 51820)), key);
    // The flood has lasted a few seconds before the first initiation.
    for _ in 0..4000 {
        world.run_for(ms(1));
        flood_for_a_millisecond(world);
        world.sent.clear();
    }
    for initiation in 1..=4 {
        let message = stranger.initiation(world).unwrap();
        let _ = world.deliver(B, &message);
        if stranger.hear(world) {
            return Some(initiation);
        }
        // Rekey-Timeout and its jitter.
        for _ in 0..5400 {
            world.run_for(ms(1));
            flood_for_a_millisecond(world);
            world.sent.retain(|sent| sent.datagram.destination == stranger.source);
        }
    }
    None
}

#[test]
fn a_thousand_peers_that_begin_at_once_after_a_quiet_time_are_all_answered() {
    let mut world = World::of(2);
    let begun: Vec<Datagram> = (0..1000).map(|number| new_initiator(&mut world, number)).collect();
    for initiation in &begun {
        assert_eq!(world.deliver(B, initiation), Ok(None));
    }
    assert_eq!((world.count(B, Kind::Response), world.count(B, Kind::Cookie)), (1000, 0));
    world.run_for(ms(20));
    assert_eq!(world.nodes[B].tunnel.handshake_load(world.now).since, None);

    // The budget holds as much again for handshakes that B would have initiated. After that senders have to
    // show a cookie.
    let reasons = flood(&mut world, &begun[0], 10 * FLOOD);
    assert!(count(&reasons[..1000], DropReason::ReplayedHandshake) == 1000);
    assert!(count(&reasons[5 * FLOOD..], DropReason::ReplayedHandshake) == 0);
    assert_eq!(world.nodes[B].tunnel.handshake_load(world.now).since, Some(world.now));
}

#[test]
fn a_sustained_flood_gets_what_a_quiet_time_has_saved_once_and_is_then_asked_for_cookies() {
    let mut world = World::of(2);
    let begun: Vec<Datagram> = (0..1200).map(|number| new_initiator(&mut world, number)).collect();
    let initiation = begun[0].clone();
    assert_eq!(world.deliver(B, &initiation), Ok(None));
    let at_once = work(&mut world, |world| drop(flood(world, &initiation, 10 * FLOOD)));
    assert!((ms(900)..ms(1200)).contains(&at_once), "the work of 2,000 handshakes, and cookies: {at_once:?}");

    let flood_for = |world: &mut World, time: Duration| {
        let mut reasons = Vec::new();
        let end = world.elapsed() + time;
        while world.elapsed() < end {
            world.run_for(ms(1));
            reasons.extend(flood(world, &initiation, 20));
        }
        reasons
    };
    let mut reasons = Vec::new();
    let spent = work(&mut world, |world| reasons = flood_for(world, secs(10)));
    assert_eq!(count(&reasons, DropReason::ReplayedHandshake), 0, "no X25519 without a cookie");
    assert!(count(&reasons, DropReason::CookieRequired) > 10_000);
    assert!(spent <= ms(1010), "a tenth of the time, cookie replies included: {spent:?}");
    let since = world.nodes[B].tunnel.handshake_load(world.now).since.unwrap();
    assert!(world.now - since > secs(9));
    // The load ends a second after the last refusal.
    world.run_for(secs(4));
    assert_eq!(world.nodes[B].tunnel.handshake_load(world.now).since, None);
    assert_eq!(flood(&mut world, &initiation, 20), [DropReason::ReplayedHandshake; 20]);
}

#[test]
fn what_is_more_than_the_budget_is_answered_with_cookies_of_64_bytes_for_148() {
    let (mut world, initiation) = pair_and_old_initiation();
    let reasons = flood(&mut world, &initiation, FLOOD);
    let worked_on = count(&reasons, DropReason::ReplayedHandshake);
    assert!((200..=600).contains(&worked_on), "{worked_on}");
    let cookies = count(&reasons, DropReason::CookieRequired);
    assert_eq!(worked_on + cookies + count(&reasons, DropReason::HandshakeRateLimited), FLOOD);
    assert_eq!(world.nodes[B].stats().cookies_sent as usize, cookies);
    assert_eq!(world.count(B, Kind::Cookie), cookies);
    assert_eq!(world.sent.len(), cookies, "nothing but cookie replies");
    assert!(world.sent.iter().all(|sent| sent.datagram.bytes.len() == 64));
    assert!(world.sent.iter().all(|sent| sent.datagram.destination == source(1)));
    assert!(world.sent.iter().all(|sent| sent.source == Some(world.nodes[B].address.ip())));

    world.run_for(secs(2));
    assert_eq!(
        flood(&mut world, &initiation, 1),
        [DropReason::ReplayedHandshake],
        "two seconds later it is over"
    );
}

#[test]
fn an_initiator_with_a_cookie_gets_through_on_its_retry() {
    let (mut world, initiation) = pair_and_old_initiation();
    // A's initiation does not arrive at the same instant as one of the flood.
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
}

#[test]
fn a_cookie_proves_one_address_and_port() {
    let (mut world, initiation) = pair_and_old_initiation();
    run_under_flood(&mut world, &initiation, ms(3));
    world.run_for(us(500));
    world.send(A, B, 2).unwrap();
    world.run_for(us(500));
    run_under_flood(&mut world, &initiation, secs(6));
    let proven = world.last_sent(A, Kind::Initiation);
    assert_ne!(proven.bytes[132..], [0; 16], "it has a mac2");
    assert_eq!(flood(&mut world, &proven, 1), [DropReason::ReplayedHandshake]);
    let port = SocketAddr::new(proven.source.ip(), proven.source.port() ^ 1);
    for source in [source(2), port] {
        let stolen = Datagram { source, ..proven.clone() };
        assert_eq!(flood(&mut world, &stolen, 1), [DropReason::CookieRequired]);
    }
}

/// Returns an initiation with a valid cookie from a stranger at each of `sources`, which can be repeated.
fn proven_strangers(world: &mut World, sources: impl Iterator<Item = SocketAddr>) -> Vec<Datagram> {
    let mut strangers: Vec<_> = sources.map(|source| Initiator::stranger(world, source)).collect();
    for batch in strangers.chunks_mut(64) {
        // Not all at once: cookie replies have a budget.
        let initiations: Vec<_> =
            batch.iter_mut().map(|stranger| stranger.initiation(world).unwrap()).collect();
        for initiation in initiations {
            assert_eq!(world.deliver(B, &initiation), Err(DropReason::CookieRequired));
        }
        for stranger in batch {
            stranger.hear(world);
        }
        world.sent.clear();
        world.run_for(ms(100));
    }
    world.run_for(ms(5400));
    strangers
        .iter_mut()
        .map(|stranger| {
            let proven = stranger.initiation(world).unwrap();
            assert_ne!(proven.bytes[132..], [0; 16], "it has a mac2");
            proven
        })
        .collect()
}

/// Creates a world in which B is under load from the start.
fn loaded_world() -> (World, Datagram) {
    let mut world = World::pair();
    let unknown = Initiator::stranger(&world, source(9)).initiation(&world).unwrap();
    flood(&mut world, &unknown, 2 * FLOOD);
    (world, unknown)
}

/// Keeps B under load at almost no cost.
fn keep_loaded(world: &mut World, unknown: &Datagram) {
    flood(world, unknown, 50);
}

#[test]
fn one_proven_address_that_floods_gets_little_and_a_stranger_gets_in() {
    let (mut world, unknown) = loaded_world();
    let proven = proven_strangers(&mut world, std::iter::once(source(5))).remove(0);
    keep_loaded(&mut world, &unknown);
    let mut reasons = Vec::new();
    let mut needed = None;
    let spent = work(&mut world, |world| {
        needed = initiations_needed(world, |world| reasons.extend(flood(world, &proven, 5)));
    });
    let elapsed = reasons.len() as f64 / 5000.0;
    let identified = count(&reasons, DropReason::UnknownPeer) as f64;
    // The work that idle time has saved, and a few a second.
    assert!(identified <= 1100.0 + 20.0 * elapsed, "{identified} X25519 in {elapsed} s");
    assert!(spent.as_secs_f64() <= 0.1 * elapsed + 0.2, "{spent:?} in {elapsed} s");
    assert!(needed.is_some_and(|initiations| initiations <= 3), "{needed:?}");
}

#[test]
fn many_proven_networks_that_flood_leave_a_stranger_its_turn() {
    for spread in [0, 16] {
        let (mut world, unknown) = loaded_world();
        // The networks are in one /48, or in 256.
        let network = |number: u32| {
            let bits = (0x2001_0db8_u128 << 96) + (u128::from(number) << (64 + spread)) + 1;
            SocketAddr::from((Ipv6Addr::from_bits(bits), 1000))
        };
        let proven = proven_strangers(&mut world, (0..256).map(network));
        keep_loaded(&mut world, &unknown);
        let (mut sent, mut identified) = (0, 0);
        let mut needed = None;
        let spent = work(&mut world, |world| {
            needed = initiations_needed(world, |world| {
                for _ in 0..5 {
                    let reason = world.deliver(B, &proven[sent % proven.len()]).unwrap_err();
                    identified += usize::from(reason == DropReason::UnknownPeer);
                    sent += 1;
                }
            });
        });
        let elapsed = sent as f64 / 5000.0;
        assert!(spent.as_secs_f64() <= 0.1 * elapsed + 0.2, "{spent:?} in {elapsed} s, {identified} X25519");
        assert!(needed.is_some_and(|initiations| initiations <= 3), "spread {spread}: {needed:?}");
    }
}

#[test]
fn a_flood_with_cookies_is_refused_without_a_look_at_them() {
    let (mut world, unknown) = loaded_world();
    let network = |number: u32| {
        SocketAddr::from((
            Ipv6Addr::from_bits((0x2001_0db8_u128 << 96) + (u128::from(number) << 64) + 1),
            1000,
        ))
    };
    let proven = proven_strangers(&mut world, (0..64).map(network));
    keep_loaded(&mut world, &unknown);
    // A slow machine, on which to check each cookie would take more time than there is.
    world.nodes[B].tunnel.calibrate(us(150));
    world.run_for(secs(1));
    let unread_at = |world: &World| world.nodes[B].tunnel.handshake_load(world.now).unread_at;
    let before = unread_at(&world);
    let mut flood = proven.iter().cycle();
    for _ in 0..10_000 {
        for _ in 0..20 {
            world.deliver(B, flood.next().unwrap()).unwrap_err();
        }
        world.run_for(ms(1));
    }
    assert_eq!(unread_at(&world), before, "20,000 messages a second were not all read");
}

#[test]
fn thousands_of_addresses_without_cookies_leave_a_stranger_its_turn() {
    let (mut world, unknown) = loaded_world();
    let mut next = 0_u32;
    let flood = |world: &mut World| {
        for _ in 0..10 {
            let address = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + next % 16_384));
            next = next.wrapping_add(10_007);
            let spoofed = Datagram { source: SocketAddr::new(address, 1), ..unknown.clone() };
            assert_ne!(
                world.deliver(B, &spoofed),
                Err(DropReason::UnknownPeer),
                "no X25519 without a cookie"
            );
        }
    };
    let mut needed = None;
    let began = world.elapsed();
    let spent = work(&mut world, |world| needed = initiations_needed(world, flood));
    let elapsed = world.elapsed() - began;
    assert!(spent <= elapsed / 10 + ms(110), "{spent:?} in {elapsed:?}");
    assert!(needed.is_some_and(|initiations| initiations <= 3), "{needed:?}");
}

#[test]
fn a_peer_is_answered_50_times_a_second_at_most() {
    let mut world = World::of(2);
    let key = PrivateKey::generate().unwrap();
    world.insert(B, peer(key.public_key(), None, "10.9.9.9/32"));
    let mut answered = 0;
    for number in 0..1000 {
        // A peer that makes a fresh initiation each millisecond.
        let address = SocketAddr::from(([198, 51, 100, 1], 1000 + number));
        let fresh = Initiator::with_key(&world, address, key.clone()).initiation(&world).unwrap();
        answered += usize::from(world.deliver(B, &fresh).is_ok());
        world.run_for(ms(1));
    }
    assert!((45..=50).contains(&answered), "{answered}");
}

#[test]
fn after_a_few_forged_responses_an_address_has_to_be_proved() {
    let mut world = World::hub();
    world.cut.insert((B, A));
    world.send(A, B, 1).unwrap();
    world.run_for(ms(100));
    let response = world.last_sent(B, Kind::Response);
    let mut forged = response.clone();
    forged.bytes[50] ^= 1;
    crate::forge::remake_mac1(&mut forged, &world.nodes[A].public_key());
    let reasons: Vec<_> = (0..100).map(|_| world.deliver(A, &forged).unwrap_err()).collect();
    assert_eq!(count(&reasons, DropReason::InvalidTag), 8);
    assert_eq!(count(&reasons, DropReason::CookieRequired), 92);
    assert_eq!(world.deliver(A, &response), Err(DropReason::CookieRequired));
    // Others do not have to.
    world.send(C, A, 2).unwrap();
    world.run_for(ms(200));
    assert_eq!(world.nodes[A].numbers(), [2]);
    // The next response of B carries a cookie, and no forged responses to the new initiation exist yet.
    world.cut.clear();
    world.run_for(secs(6));
    assert_eq!(world.nodes[B].numbers(), [1]);
}

#[test]
fn a_wrong_mac1_is_no_load() {
    let (mut world, initiation) = pair_and_old_initiation();
    let mut wrong = initiation.clone();
    wrong.bytes[120] ^= 1;
    let reasons = flood(&mut world, &wrong, FLOOD);
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
