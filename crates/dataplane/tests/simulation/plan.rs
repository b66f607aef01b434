//! What a world consists of, and what happens in it: all of it is drawn from its seed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use ipnet::IpNet;
use weft_tunnel::{PeerConfig, PeerSettings, PresharedKey, PrivateKey, PublicKey, ip};

use crate::chance::Chance;
use crate::kernel::{End, Kernel, TooLong, Translator};
use crate::network::Faults;
use crate::packet::{Headers, inner_v4, inner_v6};

/// Time since the start of the machine when a world begins: boringtun's clock must not stand at zero.
pub(crate) const BEGIN: Duration = Duration::from_secs(1000);
/// The node that the others, the clients, have as their peer.
pub(crate) const GATEWAY: usize = 0;
/// Stands for the client that has the addresses which change their peer.
pub(crate) const ROVING: usize = 250;

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long things happen in a world.
const LENGTHS: [Duration; 8] =
    [secs(20), secs(20), secs(60), secs(300), secs(300), secs(1200), secs(4000), secs(7 * 86_400)];
/// From this length on there are no keepalives, which would be most of the work.
const LONG: Duration = secs(86_400);

/// What links carry, from what every host accepts to an Ethernet.
const LINK_MTUS: [usize; 7] = [576, 1000, 1280, 1340, 1420, 1480, 1500];

/// What happens to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Programs send packets.
    Burst,
    /// A program sends a packet for no peer, or with another source address than its own.
    Stray,
    TunIsFull(bool),
    SocketIsFull(bool),
    /// A share of the system calls fails.
    Errors(u64),
    Cut(bool),
    /// The address translator chooses another port.
    Translator,
    /// Another listening port.
    Port,
    /// The process ends at once, and starts again.
    Restart,
    /// The process ends and leaves its state, its sockets and its TUN to the next one.
    HandOver,
    /// The next process starts.
    TakeOver,
    /// The wall clock is set forward.
    Clock,
    /// A peer is removed, and added again later.
    Remove(usize),
    Add(usize),
    /// Another interval of keepalives.
    Keepalive,
    Snapshot,
    /// A peer moves to a packet thread, if there are several.
    Move(usize, u16),
    /// The addresses that change their peer are this peer's.
    Reroute(usize),
    /// The link of the node carries packets of other lengths.
    LinkMtu(usize),
    /// A stranger sends bytes that may look like messages.
    Junk,
}

/// A node at the beginning.
pub(crate) struct Site {
    pub(crate) key: PrivateKey,
    /// The settings of its peers, by node.
    pub(crate) peers: BTreeMap<usize, PeerConfig>,
    pub(crate) kernel: Kernel,
}

/// Packets that a program sends to another node, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) number: u32,
    /// The number of packets so far.
    pub(crate) places: u32,
    /// Those of the next packet.
    pub(crate) headers: Headers,
}

pub(crate) struct Plan {
    pub(crate) length: Duration,
    pub(crate) sites: Vec<Site>,
    pub(crate) delay: Duration,
    pub(crate) faults: Faults,
    pub(crate) flows: Vec<Flow>,
    /// By time, and in the order of their numbers.
    pub(crate) events: BTreeMap<(Duration, u64), (usize, Event)>,
}

impl Plan {
    pub(crate) fn draw(chance: &mut Chance) -> Self {
        let length = LENGTHS[chance.below(LENGTHS.len())];
        let nodes = 2 + chance.below(4);
        let sites = sites(nodes, length, chance);
        let delay = chance.up_to(secs(1)).max(Duration::from_millis(1));
        let faults = if chance.happens(70) { faults(chance) } else { Faults::NONE };
        let mut flows = Vec::new();
        for from in 0..nodes {
            for _ in 0..=chance.below(3) {
                let to = match from {
                    GATEWAY if chance.happens(20) => ROVING,
                    GATEWAY => 1 + chance.below(nodes - 1),
                    _ => GATEWAY,
                };
                flows.push(flow(from, to, flows.len() as u32, chance));
            }
        }
        let mut plan = Self { length, sites, delay, faults, flows, events: BTreeMap::new() };
        for _ in 0..20 + chance.below(80) {
            plan.draw_event(chance);
        }
        plan
    }

    fn draw_event(&mut self, chance: &mut Chance) {
        let nodes = self.sites.len();
        let node = chance.below(nodes);
        let at = BEGIN + Duration::from_micros(chance.next() % self.length.as_micros() as u64);
        let length = chance.up_to(secs(120));
        let (event, end) = match chance.below(51) {
            0..22 => (Event::Burst, None),
            22..24 => (Event::Stray, None),
            24..26 => (Event::TunIsFull(true), Some(Event::TunIsFull(false))),
            26..28 => (Event::SocketIsFull(true), Some(Event::SocketIsFull(false))),
            28 => (Event::Errors(chance.next() % 50), Some(Event::Errors(0))),
            29 => (Event::Cut(true), Some(Event::Cut(false))),
            30 | 31 => (Event::Translator, None),
            // Clients find the gateway at its port.
            32 if node == GATEWAY => return,
            32 => (Event::Port, None),
            33 => (Event::Restart, None),
            34 => (Event::Clock, None),
            35 => {
                let peers: Vec<_> = self.sites[node].peers.keys().copied().collect();
                let peer = *chance.one_of(&peers);
                (Event::Remove(peer), Some(Event::Add(peer)))
            }
            36 if self.length >= LONG => return,
            36 => (Event::Keepalive, None),
            37 | 38 => (Event::Snapshot, None),
            39 | 40 => (Event::HandOver, None),
            41..45 if self.sites[GATEWAY].kernel.ends.len() == 1 => return,
            41..45 => {
                let threads = self.sites[GATEWAY].kernel.ends.len();
                let peer = 1 + chance.below(nodes - 1);
                self.schedule(at, GATEWAY, Event::Move(peer, chance.below(threads) as u16));
                (Event::Burst, None)
            }
            48 | 49 => {
                let event = Event::Reroute(1 + chance.below(nodes - 1));
                self.schedule(at, GATEWAY, event);
                (Event::Burst, None)
            }
            45..48 => (Event::LinkMtu(*chance.one_of(&LINK_MTUS)), None),
            _ => (Event::Junk, None),
        };
        self.schedule(at, node, event);
        if let Some(end) = end {
            self.schedule(at + length, node, end);
        }
        // Others are at work meanwhile.
        for _ in 0..chance.below(3) {
            let at = at + chance.up_to(length);
            self.schedule(at, chance.below(nodes), Event::Burst);
        }
    }

    fn schedule(&mut self, at: Duration, node: usize, event: Event) {
        let serial = self.events.len() as u64;
        self.events.insert((at, serial), (node, event));
    }
}

/// Returns the prefixes of the addresses that a node has inside the tunnel.
pub(crate) fn addresses_of(node: usize) -> Vec<IpNet> {
    [IpAddr::from(inner_v4(node)), IpAddr::from(inner_v6(node))].map(IpNet::from).to_vec()
}

fn sites(nodes: usize, length: Duration, chance: &mut Chance) -> Vec<Site> {
    let kernels: Vec<_> = (0..nodes).map(|node| kernel(node, chance)).collect();
    let keys: Vec<_> = (0..nodes).map(|_| PrivateKey::generate().unwrap()).collect();
    let public: Vec<PublicKey> = keys.iter().map(PrivateKey::public_key).collect();
    let secrets: Vec<_> = (0..nodes)
        .map(|node| chance.happens(30).then(|| PresharedKey::from_bytes([node as u8 + 1; 32])))
        .collect();
    let mut peers = Vec::new();
    for of in 0..nodes {
        let others = if of == GATEWAY { 1..nodes } else { GATEWAY..GATEWAY + 1 };
        let peer = |other: usize| {
            let is_known = of != GATEWAY || kernels[other].translator.is_none();
            let mut allowed_ips = addresses_of(other);
            if other == 1 {
                allowed_ips.extend(addresses_of(ROVING));
            }
            let keepalive = length < LONG && chance.happens(30);
            let config = PeerConfig {
                public_key: public[other],
                endpoint: is_known.then_some(kernels[other].address),
                allowed_ips,
                settings: PeerSettings {
                    preshared_key: secrets[of.max(other)].clone(),
                    persistent_keepalive: NonZeroU16::new(25).filter(|_| keepalive),
                    ..PeerSettings::default()
                },
            };
            (other, config)
        };
        peers.push(others.map(peer).collect());
    }
    let sites = keys.into_iter().zip(peers).zip(kernels);
    sites.map(|((key, peers), kernel)| Site { key, peers, kernel }).collect()
}

fn kernel(node: usize, chance: &mut Chance) -> Kernel {
    let mut kernel = Kernel::new(SocketAddr::from(([192, 0, 2, node as u8 + 1], 51820)));
    if node != GATEWAY && chance.happens(50) {
        let outside = SocketAddr::from(([198, 51, 100, node as u8], 1024));
        kernel.translator = Some(Translator { outside });
    }
    kernel.has_handshake_socket = chance.happens(50);
    kernel.joins = chance.happens(50);
    kernel.steers = chance.happens(70);
    if node == GATEWAY && chance.happens(40) {
        kernel.ends.resize_with(2 + chance.below(2), End::default);
    }
    kernel.has_offloads = chance.happens(50);
    kernel.too_long =
        *chance.one_of(&[TooLong::Fragmented, TooLong::Reported, TooLong::Reported, TooLong::Refused]);
    kernel
}

fn faults(chance: &mut Chance) -> Faults {
    Faults {
        loss_percent: chance.next() % 20,
        duplication_percent: chance.next() % 10,
        damage_percent: chance.next() % 5,
        repeat_percent: (chance.next() % 10).saturating_sub(4),
    }
}

fn flow(from: usize, to: usize, number: u32, chance: &mut Chance) -> Flow {
    let is_v4 = chance.happens(70);
    let is_tcp = chance.happens(50);
    let address = |node| if is_v4 { IpAddr::from(inner_v4(node)) } else { IpAddr::from(inner_v6(node)) };
    let headers = Headers {
        source: address(from),
        destination: address(to),
        protocol: if is_tcp { ip::TCP } else { ip::UDP },
        port: number as u16,
        stays_whole: chance.happens(80),
        has_checksum: !is_v4 || is_tcp || chance.happens(70),
        id: chance.next() as u16,
        sequence: chance.next() as u32,
    };
    Flow { from, to, number, places: 0, headers }
}

impl Flow {
    /// Returns a flow of UDP from one node to another.
    pub(crate) fn plain(from: usize, to: usize, number: u32) -> Self {
        let headers = Headers {
            source: inner_v4(from).into(),
            destination: inner_v4(to).into(),
            protocol: ip::UDP,
            port: number as u16,
            stays_whole: true,
            has_checksum: true,
            id: 0,
            sequence: 0,
        };
        Self { from, to, number, places: 0, headers }
    }
}
