//! A virtual network that joins tunnels, and the parts of the daemon around a tunnel: the event loop, its TUN
//! and its socket. Time is virtual, and stands still during all work.

mod event_loop;
mod network;
mod node;
mod packets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use mock_instant::MockClock;
use weft_tunnel::{
    Change, ControlQueue, CookieRoot, DropReason, Offload, Outbound, PeerConfig, PeerSettings, PlainSlab,
    PresharedKey, PrivateKey, PublicKey, Shard, TransmitQueue, Tunnel, TunnelConfig,
};

pub(crate) use network::{Datagram, Kind, Network};
pub(crate) use node::{Node, hand_over};
pub(crate) use packets::{inner_v4, inner_v6, number_of, numbered, tcp, udp};

use network::{DataCounts, Sent};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;

pub(crate) const MTU: u16 = 1420;
/// One-way delay, unless a test sets another.
pub(crate) const DELAY: Duration = Duration::from_millis(50);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Settings of a peer that differ between tests.
#[derive(Clone, Default)]
pub(crate) struct PeerOptions {
    pub(crate) preshared_key: Option<PresharedKey>,
    pub(crate) keepalive: Option<u16>,
    pub(crate) hides_endpoint: bool,
}

pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: Instant,
    began: Instant,
    pub(crate) network: Network,
    /// Directions, from node to node, on which everything is lost.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Nodes with full sockets.
    pub(crate) full: BTreeSet<usize>,
    /// Share of the datagrams that reach another shard than the kernel's choice.
    pub(crate) stray_percent: u64,
    /// Datagrams that one shard handed over to another, and the initiations among them.
    pub(crate) handed_over: u64,
    pub(crate) handed_over_initiations: u64,
    pub(crate) data: DataCounts,
    /// Whether event loops flush staged packets.
    pub(crate) flushes: bool,
    /// Everything that any node sent, lost or not.
    pub(crate) sent: Vec<Sent>,
    in_flight: BTreeMap<(Instant, u64), Datagram>,
    last_arrivals: BTreeMap<(SocketAddr, SocketAddr), Instant>,
    random: u64,
    serial: u64,
}

impl World {
    /// Creates nodes that do not know each other.
    pub(crate) fn of(nodes: usize) -> Self {
        Self::with_config(nodes, TunnelConfig { mtu: MTU, staging_bytes: 16 << 20 })
    }

    pub(crate) fn with_config(nodes: usize, config: TunnelConfig) -> Self {
        let nodes = (0..nodes).map(|node| {
            let key = PrivateKey::generate().unwrap();
            Node {
                public_key: key.public_key(),
                tunnel: Tunnel::new(key, config),
                has_moves: false,
                others: Vec::new(),
                address: SocketAddr::from(([192, 0, 2, node as u8 + 1], 51820)),
                aliases: Vec::new(),
                control: ControlQueue::new(64),
                transmits: TransmitQueue::new(8),
                plain: PlainSlab::new(4 * weft_tunnel::MAX_PACKET),
                packets: Vec::new(),
                events: Vec::new(),
                last_path_peer: None,
                wakes: 0,
            }
        });
        // boringtun's clock must not stand at zero when the first events happen.
        MockClock::advance(secs(1));
        let now = Instant::now();
        Self {
            nodes: nodes.collect(),
            now,
            began: now,
            network: Network::PERFECT,
            cut: BTreeSet::new(),
            full: BTreeSet::new(),
            stray_percent: 0,
            handed_over: 0,
            handed_over_initiations: 0,
            data: DataCounts::default(),
            flushes: true,
            sent: Vec::new(),
            in_flight: BTreeMap::new(),
            last_arrivals: BTreeMap::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            serial: 0,
        }
    }

    /// Gives a node without peers `count` shards, and another key.
    pub(crate) fn split(&mut self, node: usize, count: u16, config: TunnelConfig) {
        self.restart(node, &PrivateKey::generate().unwrap(), count, config);
    }

    /// Gives a node this key, `count` new shards and no peers. What it received is kept.
    pub(crate) fn restart(&mut self, node: usize, key: &PrivateKey, count: u16, config: TunnelConfig) {
        let cookies = CookieRoot::generate(self.now);
        let mut shards = (0..count)
            .map(|number| Tunnel::of_shard(key.clone(), config, Shard::new(number, count), &cookies));
        let node = &mut self.nodes[node];
        node.tunnel = shards.next().unwrap();
        node.others = shards.collect();
        node.public_key = key.public_key();
    }

    /// Creates two nodes that know each other's keys and endpoints.
    pub(crate) fn pair() -> Self {
        Self::pair_with(PeerOptions::default(), PeerOptions::default())
    }

    /// Creates a pair like [`Self::pair`], with these settings of each peer.
    pub(crate) fn pair_with(about_b: PeerOptions, about_a: PeerOptions) -> Self {
        let mut world = Self::of(2);
        world.introduce(A, B, about_b);
        world.introduce(B, A, about_a);
        world
    }

    /// Creates A with two peers, B and C, which know A and not each other.
    pub(crate) fn hub() -> Self {
        let mut world = Self::of(3);
        for other in [B, C] {
            world.introduce(A, other, PeerOptions::default());
            world.introduce(other, A, PeerOptions::default());
        }
        world
    }

    /// Creates a pair with a session that A initiated, and runs it until all timers have settled.
    pub(crate) fn settled_pair() -> Self {
        let mut world = Self::pair();
        world.send(A, B, 0).unwrap();
        world.run_for(ms(500));
        world.send(B, A, 0).unwrap();
        world.run_for(secs(30));
        assert_eq!((world.nodes[A].numbers(), world.nodes[B].numbers()), (vec![0], vec![0]));
        for node in &mut world.nodes {
            node.packets.clear();
            node.events.clear();
        }
        world.sent.clear();
        world
    }

    pub(crate) fn seed(&mut self, seed: u64) {
        self.random = seed;
    }

    /// Adds `other` as a peer of `node`.
    pub(crate) fn introduce(&mut self, node: usize, other: usize, options: PeerOptions) {
        let config = PeerConfig {
            public_key: self.nodes[other].public_key(),
            endpoint: (!options.hides_endpoint).then_some(self.nodes[other].address),
            allowed_ips: vec![inner_v4(other).into(), inner_v6(other).into()],
            settings: PeerSettings {
                preshared_key: options.preshared_key,
                persistent_keepalive: options.keepalive.and_then(NonZeroU16::new),
                ..PeerSettings::default()
            },
        };
        self.insert(node, config);
    }

    pub(crate) fn insert(&mut self, node: usize, config: PeerConfig) {
        let peers =
            |shard: &usize| self.nodes[node].shards().nth(*shard).map(|tunnel| tunnel.peers().count());
        let shards = self.nodes[node].shard_count();
        let owner = if shards == 1 { 0 } else { (0..shards).min_by_key(peers).unwrap() };
        self.place(node, config, owner);
    }

    /// Adds a peer to one shard of a node, as a foreign peer to the others; or moves the peer there.
    pub(crate) fn place(&mut self, node: usize, config: PeerConfig, owner: usize) {
        let now = self.now;
        for shard in (0..self.nodes[node].shard_count()).filter(|shard| *shard != owner) {
            let change = Change::AddForeignPeer {
                peer: config.public_key,
                shard: owner as u16,
                endpoint: config.endpoint,
                allowed_ips: config.allowed_ips.clone(),
            };
            assert!(self.nodes[node].shard_mut(shard).apply(change, now));
        }
        assert!(self.nodes[node].shard_mut(owner).apply(Change::AddPeer(Box::new(config)), now));
    }

    /// Moves a peer to another shard of a node, with its sessions. Returns whether it may move now.
    pub(crate) fn move_peer(&mut self, node: usize, key: &PublicKey, to: usize) -> bool {
        let now = self.now;
        self.pump(node);
        let node = &mut self.nodes[node];
        node.has_moves = true;
        let from = node.owner_of(key).unwrap();
        let mut out = TransmitQueue::new(8);
        let Some(moved) = node.shard_mut(from).take_peer(key, to as u16, now, &mut out) else { return false };
        for other in (0..node.shard_count()).filter(|other| ![from, to].contains(other)) {
            node.shard_mut(other).foreign_peer_moved(key, to as u16);
        }
        node.shard_mut(to).adopt_peer(moved, now, &mut out);
        assert_eq!(node.owner_of(key), Some(to));
        true
    }

    /// Time since the world began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    pub(crate) fn random(&mut self) -> u64 {
        // splitmix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn happens(&mut self, percent: u64) -> bool {
        percent > 0 && self.random() % 100 < percent
    }

    /// Sends a numbered packet from the TUN of `from` to `to`: IPv4 if the number is even, IPv6 if it is odd.
    pub(crate) fn send(&mut self, from: usize, to: usize, number: u64) -> Result<Outbound, DropReason> {
        self.give(from, numbered(from, to, number), Offload::None)
    }

    fn advance_to(&mut self, at: Instant) {
        MockClock::advance(at - self.now);
        self.now = at;
    }

    /// Runs all events of the next `duration`.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        for node in 0..self.nodes.len() {
            self.pump(node);
        }
        loop {
            let arrival = self.in_flight.keys().next().map(|(at, _)| *at);
            let timer = (0..self.nodes.len())
                .filter_map(|node| {
                    let due = self.nodes[node].shards().filter_map(|tunnel| Some(tunnel.poll_timeout()?.0));
                    Some((due.min()?, node))
                })
                .min();
            let next = [arrival, timer.map(|(at, _)| at)].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.advance_to(next.max(self.now));
            if let Some(node) = timer.filter(|(at, _)| *at <= self.now).map(|(_, node)| node) {
                self.nodes[node].wakes += 1;
                self.pump(node);
            } else if let Some((_, datagram)) = self.in_flight.pop_first() {
                match self.node_at(datagram.destination) {
                    Some(to) => drop(self.deliver(to, &datagram)),
                    // The receiver has moved.
                    None => self.data.lost += u64::from(datagram.kind() == Kind::Data),
                }
            }
        }
        self.advance_to(end);
    }

    /// Runs until the world is `elapsed` old.
    pub(crate) fn run_until(&mut self, elapsed: Duration) {
        self.run_for(elapsed.saturating_sub(self.elapsed()));
    }

    /// Returns when `from` sent messages of this kind, since the world began.
    pub(crate) fn times(&self, from: usize, kind: Kind) -> Vec<Duration> {
        self.sent
            .iter()
            .filter(|sent| sent.from == from && sent.datagram.kind() == kind)
            .map(|sent| sent.at)
            .collect()
    }

    pub(crate) fn count(&self, from: usize, kind: Kind) -> usize {
        self.times(from, kind).len()
    }

    /// Returns the newest datagram of this kind from `from`.
    pub(crate) fn last_sent(&self, from: usize, kind: Kind) -> Datagram {
        let mut newest_first = self.sent.iter().rev();
        let sent = newest_first.find(|sent| sent.from == from && sent.datagram.kind() == kind);
        sent.map(|sent| sent.datagram.clone()).unwrap()
    }

    /// Returns the endpoint of `other` that `node` knows.
    pub(crate) fn endpoint(&self, node: usize, other: usize) -> Option<SocketAddr> {
        self.nodes[node].peer(&self.nodes[other].public_key()).endpoint
    }

    /// Sends one packet in each direction, and reports whether both arrived exactly once.
    pub(crate) fn passes_both_ways(&mut self, number: u64) -> bool {
        let before = [self.nodes[A].packets.len(), self.nodes[B].packets.len()];
        let _ = self.send(A, B, number);
        let _ = self.send(B, A, number);
        self.run_for(secs(1));
        [A, B].into_iter().all(|node| self.nodes[node].numbers()[before[node]..] == [number])
    }
}
