//! A virtual network that joins tunnels, and the parts of the daemon around a tunnel: the event loop, its TUN
//! and its socket. Time is virtual, and stands still during all work.
//!
//! A node may have several shards: the simulation then does what the kernel and the event loops do between
//! them, on one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use mock_instant::MockClock;
use weft_tunnel::{
    Change, ControlQueue, CookieRoot, DropCounters, DropReason, Ecn, Event, Inbound, Offload, Outbound,
    PacketMut, PeerConfig, PeerId, PeerSettings, PeerSnapshot, PlainSlab, PresharedKey, PrivateKey, Progress,
    PublicKey, RecvMeta, Shard, TAILROOM, Transmit, TransmitQueue, Tunnel, TunnelConfig, TunnelStats, ip,
};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const C: usize = 2;

pub(crate) const MTU: u16 = 1420;
/// One-way delay, unless a test sets another.
pub(crate) const DELAY: Duration = Duration::from_millis(50);
/// Bound of the turns at one instant, so that a tunnel that never finishes fails the test.
const MAX_TURNS_AT_ONE_INSTANT: usize = 10_000;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Delay, loss and other faults of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) delay: Duration,
    /// Maximum random addition to the delay of each datagram.
    pub(crate) jitter: Duration,
    pub(crate) loss_percent: u64,
    pub(crate) duplication_percent: u64,
    /// Whether datagrams between two addresses arrive in the order they were sent.
    pub(crate) keeps_order: bool,
}

impl Network {
    pub(crate) const PERFECT: Self =
        Self { delay: DELAY, jitter: ms(0), loss_percent: 0, duplication_percent: 0, keeps_order: true };
}

/// The types of a WireGuard message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Initiation,
    Response,
    Cookie,
    Keepalive,
    Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

impl Datagram {
    pub(crate) fn kind(&self) -> Kind {
        match (self.bytes[0], self.bytes.len()) {
            (1, 148) => Kind::Initiation,
            (2, 92) => Kind::Response,
            (3, 64) => Kind::Cookie,
            (4, 32) => Kind::Keepalive,
            (4, len) if len > 32 => Kind::Data,
            shape => panic!("a tunnel sent no WireGuard message: {shape:?}"),
        }
    }
}

/// A datagram that a node sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Time since the world began.
    pub(crate) at: Duration,
    pub(crate) from: usize,
    /// The source address that the tunnel asked for.
    pub(crate) source: Option<IpAddr>,
    pub(crate) datagram: Datagram,
}

/// A tunnel with its address, its queues and its recorded output.
pub(crate) struct Node {
    /// The only tunnel of the node, or that of shard 0.
    pub(crate) tunnel: Tunnel,
    /// Whether peers moved between shards with their sessions.
    has_moves: bool,
    /// The tunnels of the other shards.
    pub(crate) others: Vec<Tunnel>,
    pub(crate) public_key: PublicKey,
    /// The source address that the routing table of the node chooses.
    pub(crate) address: SocketAddr,
    pub(crate) aliases: Vec<SocketAddr>,
    pub(crate) control: ControlQueue,
    transmits: TransmitQueue,
    plain: PlainSlab,
    /// All inner packets that the tunnel opened, in order.
    pub(crate) packets: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
    pub(crate) last_path_peer: Option<PeerId>,
    /// Number of wake-ups by timers.
    pub(crate) wakes: usize,
}

impl Node {
    pub(crate) fn public_key(&self) -> PublicKey {
        self.public_key
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Tunnel> {
        std::iter::once(&self.tunnel).chain(&self.others)
    }

    pub(crate) fn shard_count(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn shard_mut(&mut self, shard: usize) -> &mut Tunnel {
        shard_of(&mut self.tunnel, &mut self.others, shard)
    }

    /// Returns the shard that has this peer.
    pub(crate) fn owner_of(&self, key: &PublicKey) -> Option<usize> {
        self.shards().position(|tunnel| tunnel.peers().any(|peer| peer.public_key == *key))
    }

    /// Returns the shard whose socket the kernel chooses for a datagram: by the four bytes of the receiver
    /// index as they are on the wire.
    fn socket_of(&self, datagram: &Datagram) -> usize {
        let at = match datagram.bytes.first() {
            Some(2) => 8,
            Some(3 | 4) => 4,
            _ => return 0,
        };
        let index = datagram.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        index.map_or(0, |index| u32::from_be_bytes(*index) as usize % self.shard_count())
    }

    /// Counts of all shards together.
    pub(crate) fn drops(&self) -> DropCounters {
        let mut all = DropCounters::default();
        for (reason, count) in self.shards().flat_map(|tunnel| tunnel.drops().iter()) {
            all.add(reason, count);
        }
        all
    }

    /// Checks that every index is a peer's, and one by which the kernel finds the shard of that peer.
    fn check_indices(&self) {
        for (number, tunnel) in self.shards().enumerate().filter(|_| self.shard_count() > 1) {
            for index in tunnel.receiver_indices() {
                let [a, b, c, d] = index.to_le_bytes();
                let drawn_by = u32::from_be_bytes([a, b, c, d]) as usize % self.shard_count();
                if !self.has_moves {
                    assert_eq!(drawn_by, number, "{index:#x}");
                }
                let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
                let peer_in = |tunnel: &Tunnel| tunnel.peer_of_received(&[4, 0, 0, 0, a, b, c, d], nowhere);
                // The shard that drew the index keeps it for a while after the peer moved away.
                let is_known = peer_in(tunnel).is_some() || self.has_moves;
                assert!(is_known, "the peer of {index:#x} is gone");
                if peer_in(tunnel).is_some() && drawn_by != number {
                    let drew = self.shards().nth(drawn_by).unwrap();
                    assert!(
                        drew.receiver_indices().any(|known| known == index),
                        "{index:#x} is not handed over"
                    );
                }
            }
        }
    }

    /// Returns the numbers of the packets that the tunnel opened, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.packets.iter().map(|packet| number_of(packet)).collect()
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.shards().map(|tunnel| tunnel.drops().get(reason)).sum()
    }

    pub(crate) fn stats(&self) -> &TunnelStats {
        self.tunnel.stats()
    }

    pub(crate) fn peer(&self, key: &PublicKey) -> PeerSnapshot {
        self.shards().flat_map(Tunnel::peers).find(|peer| peer.public_key == *key).unwrap()
    }
}

fn shard_of<'a>(first: &'a mut Tunnel, others: &'a mut [Tunnel], shard: usize) -> &'a mut Tunnel {
    if shard == 0 { first } else { &mut others[shard - 1] }
}

/// Hands a datagram over to a shard, as event loops do.
pub(crate) fn hand_over(
    tunnel: &mut Tunnel,
    meta: &RecvMeta,
    datagram: &mut [u8],
    now: Instant,
    plain: &mut PlainSlab,
    control: &mut ControlQueue,
) -> Result<Inbound, DropReason> {
    if Tunnel::is_data(datagram) {
        tunnel.accept_handed_over(datagram)?;
        tunnel.handle_datagram(meta, datagram, now, plain, control)
    } else {
        tunnel.handle_handed_over(meta, datagram, now, control)
    }
}

/// What became of data messages on the network and at their receivers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataCounts {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    /// Dropped by the receiver's tunnel, under a reason that it counted.
    pub(crate) refused: u64,
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

    /// Moves a peer to another shard of a node, with its sessions and everything else.
    pub(crate) fn move_peer(&mut self, node: usize, key: &PublicKey, to: usize) {
        let now = self.now;
        self.pump(node);
        let node = &mut self.nodes[node];
        node.has_moves = true;
        let from = node.owner_of(key).unwrap();
        let moved = node.shard_mut(from).take_peer(key, to as u16, now).unwrap();
        for other in (0..node.shard_count()).filter(|other| ![from, to].contains(other)) {
            node.shard_mut(other).foreign_peer_moved(key, to as u16);
        }
        node.shard_mut(to).adopt_peer(moved, now);
        assert_eq!(node.owner_of(key), Some(to));
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

    /// Sends a packet from the TUN of `from`.
    pub(crate) fn give(
        &mut self,
        from: usize,
        mut packet: Vec<u8>,
        offload: Offload,
    ) -> Result<Outbound, DropReason> {
        self.pump(from);
        let shard = self.shard_for(from, &packet);
        let len = packet.len();
        packet.resize(len + TAILROOM, 0xee);
        let mut packet = PacketMut::new(&mut packet, len, offload).unwrap();
        let now = self.now;
        let Node { tunnel, others, transmits, .. } = &mut self.nodes[from];
        assert!(transmits.has_room_for_super_packet());
        let result = shard_of(tunnel, others, shard).handle_tun_packet(&mut packet, now, transmits);
        self.pump(from);
        result
    }

    /// Returns the shard that handles a packet from the TUN: any shard may read it, and hands it over.
    fn shard_for(&mut self, node: usize, packet: &[u8]) -> usize {
        let shards = self.nodes[node].shard_count();
        let reader = if shards == 1 { 0 } else { (self.random() % shards as u64) as usize };
        let owner = self.nodes[node].shard_mut(reader).shard_of(packet);
        assert_ne!(owner, Some(reader as u16), "that is the reader itself");
        owner.map_or(reader, usize::from)
    }

    /// Delivers a datagram from the socket of `to`, as its event loop does. Returns the inner packet.
    pub(crate) fn deliver(&mut self, to: usize, datagram: &Datagram) -> Result<Option<Vec<u8>>, DropReason> {
        let meta = RecvMeta {
            source: datagram.source,
            local: Some(datagram.destination.ip()),
            ecn: datagram.ecn,
            len: datagram.bytes.len(),
            stride: datagram.bytes.len().max(1),
        };
        let now = self.now;
        let is_stray = self.happens(self.stray_percent);
        let stray = if is_stray { self.random() as usize % self.nodes[to].shard_count() } else { 0 };
        let node = &mut self.nodes[to];
        node.plain.clear();
        let before = node.drops();
        let mut bytes = datagram.bytes.clone();
        let receiver = if is_stray { stray } else { node.socket_of(datagram) };
        let Node { tunnel, others, plain, control, .. } = node;
        let mut result =
            shard_of(tunnel, others, receiver).handle_datagram(&meta, &mut bytes, now, plain, control);
        if let Ok(Inbound::Elsewhere(shard)) = result {
            assert_ne!(usize::from(shard), receiver, "handed over to itself");
            assert_eq!(node.drops(), before, "it is not dropped");
            assert!(node.control.is_empty(), "and not answered");
            self.handed_over += 1;
            self.handed_over_initiations += u64::from(datagram.bytes[0] == 1);
            let Node { tunnel, others, plain, control, .. } = node;
            let tunnel = shard_of(tunnel, others, shard.into());
            result = hand_over(tunnel, &meta, &mut bytes, now, plain, control);
            // A datagram that the kernel gave to the wrong shard, of a peer that moved.
            if let Ok(Inbound::Elsewhere(shard)) = result {
                assert!(node.has_moves && is_stray, "handed over again, to {shard}");
                let Node { tunnel, others, plain, control, .. } = node;
                let tunnel = shard_of(tunnel, others, shard.into());
                result = hand_over(tunnel, &meta, &mut bytes, now, plain, control);
            }
        }
        assert_eq!(bytes, datagram.bytes, "it is as it was");
        if let Err(reason) = result {
            self.data.refused += u64::from(Tunnel::is_data(&bytes) && bytes.len() > 32);
            let after = node.drops();
            assert_eq!(after.get(reason), before.get(reason) + 1, "{reason:?} is counted once");
            assert_eq!(after.total(), before.total() + 1, "and nothing else is");
        }
        let packet = result.map(|inbound| match inbound {
            Inbound::Packet(plain) => Some(node.plain.get(plain).to_vec()),
            Inbound::Consumed => None,
            Inbound::Elsewhere(shard) => panic!("handed over again, to {shard}"),
        });
        if let Ok(Some(packet)) = &packet {
            node.packets.push(packet.clone());
        }
        self.pump(to);
        packet
    }

    /// Runs turns of the event loop of `node`: staged packets, timers, and everything that waits for the
    /// socket.
    pub(crate) fn pump(&mut self, node: usize) {
        for shard in 0..self.nodes[node].shard_count() {
            self.pump_shard(node, shard);
        }
        self.nodes[node].check_indices();
    }

    fn pump_shard(&mut self, node: usize, shard: usize) {
        let now = self.now;
        for _ in 0..MAX_TURNS_AT_ONE_INSTANT {
            let Node { tunnel, others, transmits, control, events, .. } = &mut self.nodes[node];
            let tunnel = shard_of(tunnel, others, shard);
            let mut progress = Progress::Done;
            if self.flushes && tunnel.has_ready_staged() {
                progress = tunnel.flush_staged(now, transmits);
            }
            if tunnel.handle_timeout(now, control) == Progress::Blocked {
                progress = Progress::Blocked;
            }
            let first_event = events.len();
            while let Some(event) = tunnel.poll_event() {
                events.push(event);
            }
            self.tell_first_shard(node, shard, first_event);
            self.drain(node);
            if progress == Progress::Done {
                let due = self.nodes[node].shard_mut(shard).poll_timeout();
                assert!(due.is_none_or(|(at, _)| at > now), "still due after handle_timeout: {due:?}");
                return;
            }
        }
        panic!("a tunnel never has enough");
    }

    /// Tells shard 0, which receives all initiations, where the peers of another shard are now.
    fn tell_first_shard(&mut self, node: usize, shard: usize, first_event: usize) {
        if shard == 0 {
            return;
        }
        let Node { tunnel, events, .. } = &mut self.nodes[node];
        for event in &events[first_event..] {
            if let Event::EndpointChanged { peer, endpoint } = *event {
                assert!(tunnel.apply(Change::Endpoint { peer, endpoint }, self.now));
            }
        }
    }

    fn drain(&mut self, node: usize) {
        if self.full.contains(&node) {
            return;
        }
        while let Some(message) = self.nodes[node].control.pop() {
            self.put_on_the_wire(node, &message.transmit());
        }
        while let Some(batch) = self.nodes[node].transmits.pop() {
            self.nodes[node].last_path_peer = Some(batch.path().peer);
            self.put_on_the_wire(node, &batch.unsent());
            self.nodes[node].transmits.recycle(batch);
        }
    }

    fn put_on_the_wire(&mut self, node: usize, transmit: &Transmit<'_>) {
        let port = self.nodes[node].address.port();
        let source =
            transmit.source.map_or(self.nodes[node].address, |address| SocketAddr::new(address, port));
        for bytes in transmit.contents.chunks(transmit.segment_size) {
            let datagram = Datagram {
                source,
                destination: transmit.destination,
                ecn: transmit.ecn,
                bytes: bytes.to_vec(),
            };
            let sent =
                Sent { at: self.elapsed(), from: node, source: transmit.source, datagram: datagram.clone() };
            self.sent.push(sent);
            let is_data = u64::from(datagram.kind() == Kind::Data);
            let to = self.node_at(datagram.destination);
            let is_cut = to.is_none_or(|to| self.cut.contains(&(node, to)));
            if is_cut || self.happens(self.network.loss_percent) {
                self.data.lost += is_data;
                continue;
            }
            let is_twice = self.happens(self.network.duplication_percent);
            self.data.duplicated += is_data * u64::from(is_twice);
            let copies = 1 + usize::from(is_twice);
            for _ in 0..copies {
                let jitter = self.network.jitter.as_micros() as u64;
                let extra = if jitter == 0 { 0 } else { self.random() % jitter };
                let mut at = self.now + self.network.delay + Duration::from_micros(extra);
                let last = self.last_arrivals.entry((source, datagram.destination)).or_insert(at);
                if self.network.keeps_order {
                    at = at.max(*last);
                }
                *last = at.max(*last);
                self.serial += 1;
                self.in_flight.insert((at, self.serial), datagram.clone());
            }
        }
    }

    fn node_at(&self, address: SocketAddr) -> Option<usize> {
        self.nodes.iter().position(|node| node.address == address || node.aliases.contains(&address))
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

/// The inner addresses of a node.
pub(crate) fn inner_v4(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1))
}

pub(crate) fn inner_v6(node: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1))
}

/// Builds a UDP packet with a number in its payload, and a size that depends on the number.
pub(crate) fn numbered(from: usize, to: usize, number: u64) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(8 + (number as usize * 37) % 200, number as u8);
    if number.is_multiple_of(2) {
        udp(inner_v4(from), inner_v4(to), &payload)
    } else {
        udp(inner_v6(from), inner_v6(to), &payload)
    }
}

/// Returns the number in a packet that [`numbered`] made, and checks its checksums.
pub(crate) fn number_of(packet: &[u8]) -> u64 {
    let header = ip::IpHeader::parse(packet).unwrap();
    assert_eq!(header.total_len, packet.len(), "padding was cut off");
    let (protocol, at) = ip::transport(packet, &header).unwrap();
    let pseudo = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], protocol, packet.len() - at);
    assert_eq!(ip::fold(ip::checksum_add(pseudo, &packet[at..])), 0xffff, "checksum");
    u64::from_be_bytes(*packet[at + 8..].first_chunk().unwrap())
}

/// A UDP packet.
pub(crate) fn udp(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut transport = vec![0x1f, 0x90, 0x1f, 0x91, 0, 0, 0, 0];
    transport[4..6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    transport.extend_from_slice(payload);
    packet(source, destination, ip::UDP, transport, 6)
}

/// A TCP packet with the ACK and PSH flags, or a super-packet.
pub(crate) fn tcp(source: IpAddr, destination: IpAddr, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut transport = vec![0; 20];
    transport[..4].copy_from_slice(&[0x1f, 0x90, 0x1f, 0x91]);
    transport[4..8].copy_from_slice(&sequence.to_be_bytes());
    transport[12..14].copy_from_slice(&[5 << 4, 0x18]);
    transport.extend_from_slice(payload);
    packet(source, destination, ip::TCP, transport, 16)
}

fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    transport: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
            let total = (20 + transport.len()) as u16;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header.extend(source.octets().into_iter().chain(destination.octets()));
            ip::write_ipv4_checksum(&mut header, 20);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
            header.extend(source.octets().into_iter().chain(destination.octets()));
            header
        }
        _ => panic!("addresses of two families"),
    };
    let at = packet.len();
    let pseudo = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], protocol, transport.len());
    packet.extend(transport);
    let sum = !ip::fold(ip::checksum_add(pseudo, &packet[at..]));
    let sum = if sum == 0 { 0xffff } else { sum };
    packet[at + checksum_at..at + checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}
