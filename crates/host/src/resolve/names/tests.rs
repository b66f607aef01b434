//! Names in virtual time.

use super::*;

const A: &str = "192.0.2.1:7";
const B: &str = "192.0.2.2:7";
const C: &str = "192.0.2.3:7";
const SIX: &str = "[2001:db8::1]:7";

struct World {
    names: Names,
    now: Instant,
}

fn peer(byte: u8) -> PublicKey {
    PublicKey::from_bytes([byte; 32])
}

fn watched(byte: u8, host: &str, current: Option<&str>) -> Watched {
    let endpoint = Endpoint::Name { host: host.to_owned(), port: 7 };
    Watched { peer: peer(byte), endpoint, current: current.map(|text| text.parse().unwrap()) }
}

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl World {
    fn new(peers: Vec<Watched>) -> Self {
        let mut world = Self { names: Names::new(7), now: Instant::now() };
        world.names.set_peers(peers, world.now);
        world
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Advances to the next lookup, and returns how many seconds that took.
    fn next_lookup(&mut self) -> u64 {
        let due = self.names.poll_timeout().expect("a look-up is wanted");
        let waited = due.saturating_duration_since(self.now);
        self.now += waited;
        waited.as_secs()
    }

    /// Answers the lookup that is due now, and returns the peers with a new address.
    fn answer(&mut self, texts: &[&str]) -> Vec<(u8, String)> {
        let name = self.names.poll_lookup(self.now).expect("a look-up is due");
        self.names.handle_answer(&name, &addresses(texts), self.now);
        self.changes()
    }

    fn changes(&mut self) -> Vec<(u8, String)> {
        std::iter::from_fn(|| self.names.poll_change())
            .map(|(key, address)| ((1..=9).find(|&byte| peer(byte) == key).unwrap(), address.to_string()))
            .collect()
    }

    fn stale(&mut self, byte: u8) -> Vec<(u8, String)> {
        self.names.handle_stale(&peer(byte), self.now);
        self.changes()
    }

    /// Reports the peer as stale, and answers the lookup if it is due. Returns the changes.
    fn stale_with_answer(&mut self, byte: u8, texts: &[&str]) -> Vec<(u8, String)> {
        let changes = self.stale(byte);
        let is_due = self.names.poll_timeout().is_some_and(|due| due <= self.now);
        if is_due { self.answer(texts) } else { changes }
    }

    fn heard(&mut self, byte: u8, from: Option<&str>) {
        self.names.handle_heard(&peer(byte), from.map(|text| text.parse().unwrap()));
    }

    fn is_quiet(&self) -> bool {
        self.names.poll_timeout().is_none()
    }
}

fn moved(byte: u8, to: &str) -> Vec<(u8, String)> {
    vec![(byte, to.to_owned())]
}

#[test]
fn a_resolved_peer_that_speaks_is_never_looked_up() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    world.heard(1, None);
    assert!(world.is_quiet());
    let fixed = Watched { peer: peer(2), endpoint: Endpoint::Address(A.parse().unwrap()), current: None };
    let world = World::new(vec![fixed]);
    assert!(world.is_quiet());
}

#[test]
fn an_unresolved_name_is_tried_quickly_at_first_and_then_patiently_for_ever() {
    let mut world = World::new(vec![watched(1, "a", None)]);
    assert_eq!(world.next_lookup(), 0);
    let mut pauses = Vec::new();
    for _ in 0..20 {
        assert_eq!(world.answer(&[]), []);
        pauses.push(world.next_lookup());
    }
    let at_least = [1, 2, 4, 8, 16].into_iter().chain([20; 10]).chain([30, 60, 120, 240, 300]);
    for (pause, at_least) in pauses.into_iter().zip(at_least) {
        assert!((at_least..=at_least * 5 / 4).contains(&pause), "{pause} for {at_least}");
    }
    assert_eq!(world.answer(&[A, B]), moved(1, A));
    assert!(world.is_quiet());
}

#[test]
fn a_stale_peer_follows_its_name() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    assert_eq!(world.stale(1), []);
    assert_eq!(world.next_lookup(), 0);
    assert_eq!(world.answer(&[B]), moved(1, B));
    world.heard(1, None);
    assert!(world.is_quiet());
}

#[test]
fn a_stale_peer_whose_name_still_says_the_same_stays_and_is_asked_for_ever_more_seldom() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    world.stale(1);
    world.next_lookup();
    assert_eq!(world.answer(&[A]), []);
    // No name is looked up for a peer to which nothing is sent.
    assert!(world.is_quiet());
    for at_least in [75, 150, 300, 300, 300] {
        assert_eq!(world.stale(1), []);
        let pause = world.next_lookup();
        assert!((at_least..=at_least * 5 / 4).contains(&pause), "{pause} for {at_least}");
        assert_eq!(world.answer(&[A]), []);
    }
    // The peer was heard: the pauses begin again, but the lookup still waits.
    world.heard(1, None);
    world.stale(1);
    assert!((70..=75).contains(&world.next_lookup()));
}

/// Reports the initiations to a peer that never answers, as the tunnel does, until `seconds` have passed.
/// Returns the seconds at which its name was looked up, and the peer's new addresses.
fn unanswered_for(world: &mut World, seconds: u64, texts: &[&str]) -> (Vec<u64>, Vec<(u8, String)>) {
    let (mut asked, mut changes, start) = (Vec::new(), Vec::new(), world.now);
    for second in 0..=seconds {
        world.now = start + Duration::from_secs(second);
        if second >= 15 && (second - 15) % 30 == 0 {
            world.names.handle_unanswered(&peer(1), (second / 5) as u32, world.now);
            changes.extend(world.changes());
        }
        if world.names.poll_timeout().is_some_and(|due| due <= world.now) {
            asked.push(second);
            changes.extend(world.answer(texts));
        }
    }
    (asked, changes)
}

#[test]
fn the_name_is_asked_for_after_three_initiations_and_then_no_more_often_than_failures_would() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    let (asked, changes) = unanswered_for(&mut world, 3600, &[A]);
    assert_eq!((asked[0], changes), (15, vec![]));
    // A lookup with each handshake that failed, every 90 s, with the pauses between them.
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    let (mut before, start) = (Vec::new(), world.now);
    for second in 0..=3600 {
        world.now = start + Duration::from_secs(second);
        if second > 0 && second % 90 == 0 {
            world.stale(1);
        }
        if world.names.poll_timeout().is_some_and(|due| due <= world.now) {
            before.push(second);
            world.answer(&[A]);
        }
    }
    for second in 0..=3600 {
        let until = |asked: &[u64]| asked.iter().filter(|at| **at <= second).count();
        assert!(until(&asked) <= until(&before) + 1, "at {second}: {asked:?} for {before:?}");
    }
}

#[test]
fn the_addresses_of_a_name_have_half_a_minute_each() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    let (asked, changes) = unanswered_for(&mut world, 80, &[A, B, C]);
    assert_eq!(asked, [15], "what is known is gone through without asking");
    assert_eq!(changes, [moved(1, B), moved(1, C), moved(1, A)].concat());
}

#[test]
fn a_peer_that_roamed_is_left_there_for_90_seconds() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    world.heard(1, Some("198.51.100.9:9"));
    let (asked, changes) = unanswered_for(&mut world, 105, &[A]);
    assert_eq!((asked, changes), (vec![105], moved(1, A)));
}

#[test]
fn a_peer_that_roamed_is_left_alone_while_it_speaks() {
    let mut world = World::new(vec![watched(1, "a", Some(A)), watched(2, "a", Some(A))]);
    world.heard(1, Some("198.51.100.9:9"));
    // The other peer's name resolves to another address.
    world.stale(2);
    world.next_lookup();
    assert_eq!(world.answer(&[B]), moved(2, B));
    world.names.handle_network_change(world.now);
    world.next_lookup();
    assert_eq!(world.answer(&[C]), moved(2, C));
    // The roamed peer fell silent, and follows its name. The answer is recent enough to be used at once.
    assert_eq!(world.stale(1), moved(1, C));
}

#[test]
fn a_peer_that_speaks_stays_though_its_name_changed() {
    let mut world = World::new(vec![watched(1, "a", Some(A)), watched(2, "a", Some(A))]);
    world.stale(2);
    world.next_lookup();
    assert_eq!(world.answer(&[B]), moved(2, B));
    world.heard(1, None);
    assert_eq!(world.changes(), []);
}

#[test]
fn a_silent_address_gives_way_to_the_next_after_it_had_its_time() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    world.stale(1);
    world.next_lookup();
    assert_eq!(world.answer(&[A, B, C]), moved(1, B));
    world.pass(10);
    assert_eq!(world.stale(1), [], "B had ten seconds");
    world.pass(20);
    assert_eq!(world.stale_with_answer(1, &[A, B, C]), moved(1, C));
    world.pass(30);
    assert_eq!(world.stale_with_answer(1, &[A, B, C]), moved(1, A), "the first again");
    world.pass(30);
    assert_eq!(world.stale_with_answer(1, &[A, B, C]), moved(1, B));
    world.heard(1, None);
    world.pass(1000);
    assert_eq!(world.changes(), []);
}

#[test]
fn the_family_that_worked_is_tried_first() {
    let mut world = World::new(vec![watched(1, "a", Some(B)), watched(2, "a", Some(SIX))]);
    world.heard(1, None);
    world.heard(2, None);
    world.stale(1);
    world.stale(2);
    world.next_lookup();
    let other_six = "[2001:db8::2]:7";
    let changes = world.answer(&[other_six, A, SIX]);
    assert_eq!(changes, [(1, A.to_owned()), (2, other_six.to_owned())]);
}

#[test]
fn a_network_change_asks_again_once_it_settled_and_not_more_often_than_every_five_seconds() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    for _ in 0..3 {
        world.names.handle_network_change(world.now);
    }
    assert_eq!(world.next_lookup(), 1);
    assert_eq!(world.answer(&[A]), []);
    assert!(world.is_quiet());
    world.names.handle_network_change(world.now);
    assert_eq!(world.next_lookup(), 5);
    // There are no name servers yet: the lookup is repeated soon.
    assert_eq!(world.answer(&[]), []);
    assert_eq!(world.next_lookup(), 1);
    // In the new network the name resolves to other addresses: the peer moves, although it was heard until
    // now.
    assert_eq!(world.answer(&[B]), moved(1, B));
    assert!(world.is_quiet());
}

#[test]
fn a_network_change_during_a_lookup_asks_again() {
    let mut world = World::new(vec![watched(1, "a", None)]);
    let name = world.names.poll_lookup(world.now).unwrap();
    world.pass(4);
    world.names.handle_network_change(world.now);
    assert!(world.names.poll_lookup(world.now).is_none(), "one at a time");
    world.names.handle_answer(&name, &addresses(&[A]), world.now);
    assert_eq!(world.changes(), moved(1, A));
    assert_eq!(world.next_lookup(), 1);
    assert_eq!(world.answer(&[B]), moved(1, B));
}

#[test]
fn failures_for_a_silent_peer_are_tried_again_without_haste_until_it_speaks() {
    let mut world = World::new(vec![watched(1, "a", Some(A))]);
    world.stale(1);
    world.next_lookup();
    world.answer(&[]);
    assert!((30..=37).contains(&world.next_lookup()));
    world.answer(&[]);
    assert!((60..=75).contains(&world.next_lookup()));
    world.answer(&[]);
    world.heard(1, None);
    assert!(world.is_quiet());
}

#[test]
fn peers_of_one_name_share_its_lookups() {
    let mut world = World::new(vec![watched(1, "a", None), watched(2, "a", None), watched(3, "b", None)]);
    assert_eq!(world.answer(&[A]), [(1, A.to_owned()), (2, A.to_owned())]);
    assert_eq!(world.answer(&[B]), moved(3, B));
    assert!(world.is_quiet());
}

#[test]
fn a_reload_keeps_what_is_known_and_forgets_who_is_gone() {
    let mut world = World::new(vec![watched(1, "a", Some(A)), watched(2, "b", None)]);
    let name = world.names.poll_lookup(world.now).unwrap();
    world.names.set_peers(vec![watched(1, "a", None)], world.now);
    assert!(world.is_quiet(), "the first one has an address already");
    world.names.handle_answer(&name, &addresses(&[B]), world.now);
    assert_eq!(world.changes(), [], "an answer for one that is gone");
    // Under another name.
    world.names.set_peers(vec![watched(1, "c", None)], world.now);
    assert_eq!(world.next_lookup(), 0);
    assert_eq!(world.answer(&[C]), moved(1, C));
}
