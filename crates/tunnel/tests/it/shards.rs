//! A node whose peers are spread over several shards, among nodes with one tunnel each.

mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use weft_tunnel::{
    Change, ControlQueue, DropReason, Ecn, Inbound, Outbound, PeerConfig, PeerSettings, PeerSnapshot,
    PlainSlab, PrivateKey, RecvMeta, Tunnel, TunnelConfig,
};

use crate::sim::{
    self, Datagram, Kind, MTU, Network, Node, PeerOptions, World, inner_v4, inner_v6, ms, numbered, secs, udp,
};

/// The node with several shards.
const S: usize = 0;
const CONFIG: TunnelConfig = TunnelConfig { mtu: MTU, staging_bytes: 16 << 20 };
/// Drops of packets that were never sent.
const OUTBOUND_DROPS: [DropReason; 6] = [
    DropReason::NoPeer,
    DropReason::PeerMoved,
    DropReason::NoEndpoint,
    DropReason::StagingFull,
    DropReason::HandshakeTimeout,
    DropReason::PeerRemoved,
];

/// Creates a world in which `others` nodes are peers of a node with `shards` shards, spread evenly.
fn world_of(shards: u16, others: usize) -> World {
    let mut world = World::of(1 + others);
    world.split(S, shards, CONFIG);
    for other in 1..=others {
        world.introduce(S, other, PeerOptions::default());
        world.introduce(other, S, PeerOptions::default());
    }
    world
}

fn stat(world: &World, of: impl Fn(&Tunnel) -> u64) -> u64 {
    world.nodes.iter().flat_map(Node::shards).map(of).sum()
}

/// The packets that were given to the nodes, by sender and receiver.
#[derive(Default)]
struct Ledger {
    ways: BTreeMap<u64, (usize, usize)>,
    next: u64,
}

impl Ledger {
    fn send(&mut self, world: &mut World, from: usize, to: usize) -> Result<Outbound, DropReason> {
        self.ways.insert(self.next, (from, to));
        self.next += 1;
        world.send(from, to, self.next - 1)
    }

    /// Checks that no packet arrived twice or at another node than its receiver, and the order if the network
    /// keeps it.
    fn check_order(&self, world: &World, keeps_order: bool) {
        for (number, node) in world.nodes.iter().enumerate() {
            let mut last = BTreeMap::new();
            let mut received = node.numbers();
            for packet in &received {
                let (from, to) = self.ways[packet];
                assert_eq!(to, number, "{packet} is not for this node");
                if let Some(before) = last.insert(from, *packet) {
                    assert!(before < *packet || !keeps_order, "{packet} came after {before}");
                }
            }
            received.sort_unstable();
            assert!(received.is_sorted_by(|a, b| a < b), "a packet arrived twice");
        }
    }

    /// Checks that each packet arrived once at its receiver, in order if the network keeps it, or is counted.
    fn check(&self, world: &World, keeps_order: bool) {
        self.check_order(world, keeps_order);
        let sealed = stat(world, |tunnel| tunnel.stats().sealed);
        let staged = stat(world, |tunnel| tunnel.stats().staged_segments);
        let dropped =
            stat(world, |tunnel| OUTBOUND_DROPS.iter().map(|reason| tunnel.drops().get(*reason)).sum());
        assert_eq!(self.next, sealed + staged + dropped, "outbound: {staged} staged, {dropped} dropped");
        let opened = stat(world, |tunnel| tunnel.stats().opened);
        assert_eq!(opened, world.nodes.iter().map(|node| node.packets.len() as u64).sum::<u64>());
        let data = world.data;
        assert_eq!(sealed + data.duplicated, opened + data.lost + data.refused, "inbound: {data:?}");
        assert_eq!(stat(world, |tunnel| tunnel.drops().get(DropReason::NoPeer)), 0);
    }
}

/// Moves a peer of the node with several shards to another of them.
fn move_peer(world: &mut World, other: usize, shard: usize) {
    let public_key = world.nodes[other].public_key();
    let config = PeerConfig {
        public_key,
        endpoint: world.endpoint(S, other),
        allowed_ips: vec![inner_v4(other).into(), inner_v6(other).into()],
        settings: PeerSettings::default(),
    };
    world.place(S, config, shard);
    assert_eq!(world.nodes[S].owner_of(&public_key), Some(shard));
}

/// How peers move between shards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    Never,
    /// The peer is removed from one shard and added to another.
    WithoutSessions,
    WithSessions,
}

/// Packets both ways in all kinds of weather, while nodes roam, sessions grow old and peers move between
/// shards; then in good weather.
fn weather_and_after(seed: u64, shards: u16, keeps_order: bool, moves: Moves) -> World {
    const OTHERS: usize = 5;
    let mut world = world_of(shards, OTHERS);
    world.seed(seed);
    world.stray_percent = if seed.is_multiple_of(2) { 0 } else { 10 };
    let mut ledger = Ledger::default();
    for _ in 0..60 {
        let other = 1 + world.random() as usize % OTHERS;
        match world.random() % 16 {
            0 => {
                world.network = Network {
                    delay: ms(1 + world.random() % 200),
                    jitter: ms(world.random() % 300),
                    loss_percent: world.random() % 30,
                    duplication_percent: world.random() % 30,
                    keeps_order,
                };
            }
            1 => {
                let host = (world.random() % 250) as u8;
                world.nodes[other].address = SocketAddr::from(([198, 51, 100 + other as u8, host], 4000));
                let (path_changed, now) = (Change::PathChanged(world.nodes[S].public_key()), world.now);
                assert!(world.nodes[other].tunnel.apply(path_changed, now));
            }
            2 => {
                let idle = secs(1 + 13 * (world.random() % 16));
                world.run_for(idle);
            }
            3 | 4 if moves != Moves::Never => {
                let shard = world.random() as usize % world.nodes[S].shard_count();
                let key = world.nodes[other].public_key();
                if world.nodes[S].owner_of(&key) != Some(shard) && moves == Moves::WithSessions {
                    let before = world.nodes[S].peer(&key);
                    let _has_moved = world.move_peer(S, &key, shard);
                    let after = world.nodes[S].peer(&key);
                    let counts = |peer: &PeerSnapshot| (peer.sent_bytes, peer.received_bytes);
                    assert_eq!(counts(&after), counts(&before));
                    assert_eq!(
                        (after.endpoint, after.last_handshake),
                        (before.endpoint, before.last_handshake)
                    );
                } else if world.nodes[S].owner_of(&key) != Some(shard) {
                    move_peer(&mut world, other, shard);
                }
            }
            _ => {
                for _ in 0..world.random() % 8 {
                    let (from, to) = if world.happens(50) { (S, other) } else { (other, S) };
                    let _ = ledger.send(&mut world, from, to);
                }
            }
        }
        let pause = ms(world.random() % 2000);
        world.run_for(pause);
    }

    world.network = Network::PERFECT;
    // A peer that moved has a session again when its other end has noticed the silence. A session is renewed
    // meanwhile.
    for _ in 0..140 {
        for other in 1..=OTHERS {
            let _ = ledger.send(&mut world, S, other);
            let _ = ledger.send(&mut world, other, S);
        }
        world.run_for(secs(1));
    }
    let before: Vec<usize> = world.nodes.iter().map(|node| node.packets.len()).collect();
    for other in 1..=OTHERS {
        for _ in 0..20 {
            assert_eq!(ledger.send(&mut world, S, other), Ok(Outbound::Sealed));
            assert_eq!(ledger.send(&mut world, other, S), Ok(Outbound::Sealed));
        }
    }
    world.run_for(secs(1));
    let received = |node: usize| world.nodes[node].packets.len() - before[node];
    assert_eq!(received(S), 20 * OTHERS, "nothing is lost in good weather");
    assert!((1..=OTHERS).all(|other| received(other) == 20));
    ledger.check(&world, keeps_order);
    check_nonces(&world);
    if world.stray_percent == 0 && moves != Moves::WithSessions {
        let initiations = world.handed_over_initiations;
        assert_eq!(world.handed_over, initiations, "the kernel finds the shard of every index");
        assert_eq!(initiations > 0, shards > 1);
    }
    world
}

#[test]
fn shards_are_one_node_to_their_peers_in_any_weather() {
    for shards in [1, 2, 3, 8] {
        for seed in 0..8 {
            weather_and_after(seed, shards, seed % 4 < 2, Moves::Never);
        }
    }
}

#[test]
fn peers_move_between_shards_and_every_packet_that_this_costs_is_counted() {
    let mut removed = 0;
    for shards in [2, 3, 8] {
        for seed in 100..108 {
            let world = weather_and_after(seed, shards, seed % 4 < 2, Moves::WithoutSessions);
            removed += world.nodes[S].dropped(DropReason::PeerRemoved);
        }
    }
    assert!(removed > 0, "some peers had staged packets");
}

/// Checks that no key sealed two messages with the same counter.
fn check_nonces(world: &World) {
    let data = world.sent.iter().filter(|sent| sent.datagram.kind() == Kind::Data);
    let mut seen = BTreeSet::new();
    for sent in data {
        // The receiver's index, and the counter.
        let nonce = (sent.from, sent.datagram.bytes[4..16].to_vec());
        assert!(seen.insert(nonce), "a counter was used twice");
    }
}

#[test]
fn peers_that_move_with_their_sessions_stay_in_order_and_what_this_costs_is_counted() {
    let mut handed_over = 0;
    for shards in [2, 3, 8] {
        for seed in 200..212 {
            let world = weather_and_after(seed, shards, seed % 4 < 2, Moves::WithSessions);
            assert_eq!(world.nodes[S].dropped(DropReason::PeerRemoved), 0);
            handed_over += world.handed_over - world.handed_over_initiations;
        }
    }
    assert!(handed_over > 0, "messages of sessions from before a move were handed over");
}

#[test]
fn after_a_restart_with_another_number_of_shards_all_goes_on_in_order() {
    const OTHERS: usize = 5;
    let (key, mut world) = (PrivateKey::generate().unwrap(), World::of(1 + OTHERS));
    let mut ledger = Ledger::default();
    for (restarts, shards) in [1, 3, 2, 8, 1].into_iter().enumerate() {
        world.restart(S, &key, shards, CONFIG);
        for other in 1..=OTHERS {
            world.introduce(S, other, PeerOptions::default());
            if restarts == 0 {
                world.introduce(other, S, PeerOptions::default());
            }
        }
        world.network = Network { delay: ms(30), keeps_order: true, ..Network::PERFECT };
        let mut exchange = |world: &mut World, packets: usize| {
            for _ in 0..packets {
                for other in 1..=OTHERS {
                    assert!(ledger.send(world, S, other).is_ok() && ledger.send(world, other, S).is_ok());
                }
            }
            world.run_for(secs(1));
        };
        // The peers have sessions with indices of the shards before.
        (0..20).for_each(|_| exchange(&mut world, 1));
        let before: Vec<usize> = world.nodes.iter().map(|node| node.packets.len()).collect();
        exchange(&mut world, 20);
        let received: Vec<usize> =
            world.nodes.iter().zip(before).map(|(node, before)| node.packets.len() - before).collect();
        assert_eq!((received[S], &received[1..]), (20 * OTHERS, &[20; OTHERS][..]), "{shards} shards");
    }
    ledger.check_order(&world, true);
    check_nonces(&world);
}

#[test]
fn a_packet_without_a_session_waits_at_the_shard_of_its_peer() {
    let mut world = world_of(3, 3);
    for other in 1..=3 {
        let key = world.nodes[other].public_key();
        let owner = world.nodes[S].owner_of(&key).unwrap();
        assert_eq!(owner, other - 1);
        assert_eq!(world.send(S, other, other as u64), Ok(Outbound::Staged));
        let staged: Vec<u64> = world.nodes[S].shards().map(|tunnel| tunnel.stats().staged_segments).collect();
        assert_eq!((staged[owner], staged.iter().sum()), (1, 1));
        world.run_for(secs(1));
        assert_eq!(world.nodes[other].numbers(), [other as u64]);
        let handshakes: Vec<u64> = world.nodes[S].shards().map(|tunnel| tunnel.stats().handshakes).collect();
        assert_eq!(handshakes.iter().sum::<u64>(), other as u64);
        assert_eq!(handshakes[owner], 1);
    }
    assert_eq!(world.handed_over, 0, "responses and data find their shard");
}

/// An initiation of `other` that was answered long ago, from another address.
fn old_initiation(world: &mut World, other: usize) -> Datagram {
    world.send(other, S, 1000).unwrap();
    world.run_for(secs(300));
    let source = SocketAddr::from(([203, 0, 113, 1], 1000));
    let old = Datagram { source, ..world.last_sent(other, Kind::Initiation) };
    world.sent.clear();
    old
}

fn run_under_flood(world: &mut World, datagram: &Datagram, millis: u64) {
    for _ in 0..millis {
        world.run_for(ms(1));
        for _ in 0..20 {
            world.deliver(S, datagram).unwrap_err();
        }
    }
}

#[test]
fn under_load_the_first_shard_demands_the_cookie_and_the_owner_answers() {
    let mut world = world_of(3, 3);
    let old = old_initiation(&mut world, 2);
    for _ in 0..2000 {
        world.deliver(S, &old).unwrap_err();
    }
    run_under_flood(&mut world, &old, 3);
    world.run_for(ms(1) / 2);
    world.send(3, S, 2).unwrap();
    world.run_for(ms(1) / 2);
    run_under_flood(&mut world, &old, 6000);
    assert_eq!(world.count(3, Kind::Initiation), 2, "without a cookie, and with it");
    assert_eq!(world.nodes[S].numbers(), [1000, 2]);
    let to_3 = world.nodes[3].address;
    let of = |kind| {
        let sent = world.sent.iter().filter(move |sent| sent.from == S && sent.datagram.kind() == kind);
        sent.filter(|sent| sent.datagram.destination == to_3).count()
    };
    assert_eq!((of(Kind::Cookie), of(Kind::Response)), (1, 1));
    let now = world.now;
    let is_loaded: Vec<bool> =
        world.nodes[S].shards().map(|tunnel| tunnel.handshake_load(now).since.is_some()).collect();
    assert!(is_loaded[0] && !is_loaded[2], "{is_loaded:?}");
}

/// Gives a datagram to one shard, whatever the kernel would choose.
fn receive(world: &mut World, shard: usize, datagram: &Datagram) -> Result<Inbound, DropReason> {
    give(world, shard, datagram, Tunnel::handle_datagram)
}

/// Gives a datagram to one shard, as another one that received it does. Nothing is answered.
fn hand_over(world: &mut World, shard: usize, datagram: &Datagram) -> Result<Inbound, DropReason> {
    give(world, shard, datagram, |tunnel, meta, datagram, now, plain, control| {
        let before = tunnel.drops().total();
        let result = sim::hand_over(tunnel, meta, datagram, now, plain, control);
        assert_eq!((tunnel.drops().total() - before, control.is_empty()), (u64::from(result.is_err()), true));
        result
    })
}

fn give<T>(
    world: &mut World,
    shard: usize,
    datagram: &Datagram,
    to: impl FnOnce(&mut Tunnel, &RecvMeta, &mut [u8], Instant, &mut PlainSlab, &mut ControlQueue) -> T,
) -> T {
    let len = datagram.bytes.len();
    let meta = RecvMeta { source: datagram.source, local: None, ecn: Ecn::NotEct, len, stride: len };
    let (mut plain, mut control) = (PlainSlab::new(1 << 16), ControlQueue::new(8));
    let now = world.now;
    let tunnel = world.nodes[S].shard_mut(shard);
    to(tunnel, &meta, &mut datagram.bytes.clone(), now, &mut plain, &mut control)
}

#[test]
fn a_shard_under_load_answers_what_another_has_admitted() {
    let mut world = world_of(3, 3);
    let old = old_initiation(&mut world, 3);
    let mut refusals = Vec::new();
    for _ in 0..2000 {
        refusals.push(receive(&mut world, 2, &old).unwrap_err());
    }
    assert!(refusals.contains(&DropReason::CookieRequired));
    world.send(3, S, 2).unwrap();
    world.run_for(ms(500));
    let load = |shard: usize| world.nodes[S].shards().nth(shard).unwrap().handshake_load(world.now).since;
    assert!(load(0).is_none() && load(2).is_some());
    assert_eq!(world.count(3, Kind::Initiation), 1);
    assert_eq!(world.nodes[S].numbers(), [1000, 2]);
}

#[test]
fn a_cookie_of_one_shard_proves_an_address_to_the_others() {
    let mut world = world_of(3, 3);
    let old = old_initiation(&mut world, 1);
    for shard in 0..3 {
        for _ in 0..2000 {
            let _ = receive(&mut world, shard, &old);
        }
    }
    // The initiation goes to shard 0, and the cookie comes from there.
    world.send(3, S, 2).unwrap();
    world.run_for(ms(200));
    assert_eq!(world.count(3, Kind::Initiation), 1);
    world.cut.insert((3, S));
    world.run_for(secs(6));
    let proven = world.last_sent(3, Kind::Initiation);
    assert_ne!(proven.bytes[132..], [0; 16], "it has a mac2");
    for shard in 0..3 {
        for _ in 0..2000 {
            let _ = receive(&mut world, shard, &old);
        }
    }
    let elsewhere = Ok(Inbound::Elsewhere(2));
    assert_eq!([0, 1].map(|shard| receive(&mut world, shard, &proven)), [elsewhere, elsewhere]);
    let stolen = Datagram { source: SocketAddr::from(([203, 0, 113, 9], 7)), ..proven.clone() };
    assert_eq!(
        [0, 1, 2].map(|shard| receive(&mut world, shard, &stolen)),
        [Err(DropReason::CookieRequired); 3]
    );
    assert_eq!(receive(&mut world, 2, &proven), Ok(Inbound::Consumed));
}

#[test]
fn a_peer_sends_from_its_own_addresses_and_not_from_those_of_a_foreign_peer() {
    let mut world = world_of(2, 2);
    world.send(1, S, 2).unwrap();
    world.run_for(secs(1));
    let forged = udp(inner_v4(2), inner_v4(S), b"forged");
    world.give(1, forged, weft_tunnel::Offload::None).unwrap();
    world.run_for(secs(1));
    assert_eq!(world.nodes[S].numbers(), [2]);
    assert_eq!(world.nodes[S].dropped(DropReason::SourceNotAllowed), 1);
}

#[test]
fn what_is_handed_over_to_the_wrong_shard_is_dropped_there() {
    let mut world = world_of(3, 3);
    world.send(S, 2, 0).unwrap();
    world.send(3, S, 2).unwrap();
    world.run_for(secs(1));
    let data = |world: &World| world.last_sent(2, Kind::Response);
    let response = data(&world);
    world.send(2, S, 4).unwrap();
    let (initiation, data) = (world.last_sent(3, Kind::Initiation), world.last_sent(2, Kind::Data));
    assert_eq!(hand_over(&mut world, 0, &response), Err(DropReason::UnexpectedHandshake));
    assert_eq!(hand_over(&mut world, 0, &data), Err(DropReason::Overload));
    assert_eq!(hand_over(&mut world, 0, &initiation), Err(DropReason::UnexpectedHandshake));
}

#[test]
fn the_shard_of_an_outbound_packet_follows_changes_to_foreign_peers() {
    let mut world = world_of(3, 2);
    let (key, now) = (world.nodes[2].public_key(), world.now);
    let packet = numbered(S, 2, 0);
    let shard_of = |world: &mut World, shard: usize| world.nodes[S].shard_mut(shard).shard_of(&packet);
    assert_eq!([0, 1, 2].map(|shard| shard_of(&mut world, shard)), [Some(1), None, Some(1)]);
    move_peer(&mut world, 2, 2);
    assert_eq!([0, 1, 2].map(|shard| shard_of(&mut world, shard)), [Some(2), Some(2), None]);

    let prefixes = vec![inner_v4(2).into()];
    let change = |add: bool| {
        let (add, remove) = if add { (prefixes.clone(), vec![]) } else { (vec![], prefixes.clone()) };
        Change::AllowedIps { peer: key, add, remove }
    };
    let tunnel = world.nodes[S].shard_mut(0);
    assert!(tunnel.apply(change(false), now));
    assert_eq!(tunnel.shard_of(&packet), None);
    assert!(tunnel.apply(change(true), now));
    assert_eq!(tunnel.shard_of(&packet), Some(2));
    assert!(tunnel.apply(Change::RemovePeer(key), now));
    assert_eq!(tunnel.shard_of(&packet), None);
}
