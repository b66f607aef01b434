//! The network between the nodes, and what arrives at their ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::chance::Chance;
use crate::kernel::{Datagram, Given, Kernel, has_packet};
use crate::packet::{Label, TooBig};
use crate::plan::{GATEWAY, ROVING};
use crate::wire::Wire;

/// Bytes of the headers of IPv4 and UDP.
pub(crate) const OUTER_HEADERS: usize = 28;
/// Bytes that a tunnel adds to a packet: these headers, and what surrounds the packet in a message.
pub(crate) const OVERHEAD: usize = OUTER_HEADERS + 32;
/// What every path is taken to carry in a tunnel: no daemon asks for less.
pub(crate) const LEAST_LIMIT: usize = 1280;

/// The longest time for which the network holds the second copy of a datagram back.
pub(crate) const HELD_BACK: Duration = Duration::from_secs(300);

/// What the network of a world does to datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) loss_percent: u64,
    pub(crate) duplication_percent: u64,
    /// Datagrams that arrive damaged.
    pub(crate) damage_percent: u64,
    /// Datagrams that arrive a second time, much later. Where a receiver dropped the first, the second takes
    /// its place, so that the network does not keep the order. They come from their sender's address: whoever
    /// can hold datagrams back and send them from elsewhere diverts both ends of any WireGuard.
    pub(crate) repeat_percent: u64,
}

impl Faults {
    pub(crate) const NONE: Self =
        Self { loss_percent: 0, duplication_percent: 0, damage_percent: 0, repeat_percent: 0 };
}

/// An inner packet on its way.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    at: Duration,
    /// The node where it arrived.
    arrived_at: Option<usize>,
}

/// What is under way to a node.
#[derive(Debug)]
enum Flying {
    Datagram(Datagram),
    /// The path to this address carries this many bytes.
    TooLong(IpAddr, usize),
}

/// The last packet of a flow that arrived.
#[derive(Clone, Copy, Debug)]
struct Last {
    place: u32,
    sent_at: Duration,
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) now: Duration,
    pub(crate) chance: Chance,
    pub(crate) delay: Duration,
    pub(crate) faults: Faults,
    has_repeats: bool,
    pub(crate) kernels: Vec<Kernel>,
    /// Nodes that are cut off.
    pub(crate) cut: Vec<bool>,
    /// What is under way, with the node that it is for, by the time of arrival.
    flying: BTreeMap<(Duration, u64), (usize, Flying)>,
    serial: u64,
    /// Of each pair of nodes, the last arrival: the network keeps the order.
    arrivals: HashMap<(usize, usize), Duration>,
    packets: HashMap<u64, Sent>,
    /// By flow and receiver.
    flows: HashMap<(u32, usize), Last>,
    next_packet: u64,
    wire: Wire,
    /// The MTUs that links have had.
    link_mtus: BTreeSet<usize>,
    /// Of everything that is on the wire or arrives.
    trace: DefaultHasher,
    pub(crate) delivered: u64,
    pub(crate) messages: u64,
}

impl Network {
    pub(crate) fn new(
        seed: u64,
        now: Duration,
        delay: Duration,
        faults: Faults,
        kernels: Vec<Kernel>,
    ) -> Self {
        Self {
            now,
            chance: Chance::new(seed),
            delay,
            faults,
            has_repeats: false,
            cut: vec![false; kernels.len()],
            link_mtus: kernels.iter().map(|kernel| kernel.link_mtu).collect(),
            kernels,
            flying: BTreeMap::new(),
            serial: 0,
            arrivals: HashMap::new(),
            packets: HashMap::new(),
            flows: HashMap::new(),
            next_packet: 0,
            wire: Wire::default(),
            trace: DefaultHasher::new(),
            delivered: 0,
            messages: 0,
        }
    }

    /// Returns a number that differs if anything was sent or arrived otherwise.
    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Gives packets of a flow to the TUN of a node, or the super-packet that `given` makes of them. Nothing
    /// happens if the TUN is full.
    pub(crate) fn give(&mut self, node: usize, flow: u32, packets: Vec<(u64, Vec<u8>)>, given: Given) {
        if !self.kernels[node].give(flow, given) {
            return;
        }
        for (number, bytes) in packets {
            self.packets.insert(number, Sent { bytes, at: self.now, arrived_at: None });
        }
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        self.next_packet += 1;
        self.next_packet
    }

    pub(crate) fn has_arrived(&self, number: u64) -> bool {
        self.packets.get(&number).is_none_or(|sent| sent.arrived_at.is_some())
    }

    pub(crate) fn has_arrived_at(&self, node: usize, number: u64) -> bool {
        self.packets.get(&number).is_none_or(|sent| sent.arrived_at == Some(node))
    }

    /// A packet that the daemon of `node` wrote to its TUN.
    pub(crate) fn arrive(&mut self, node: usize, label: Label, packet: &[u8]) {
        (self.now, node, label.number).hash(&mut self.trace);
        let is_right = label.to as usize == node || label.to as usize == ROVING && node != GATEWAY;
        assert!(is_right, "{label:?} is at node {node}");
        let sent = self.packets.get_mut(&label.number).expect("a packet that no one sent");
        assert_eq!(sent.bytes, packet, "{label:?} is not what was sent");
        assert!(sent.arrived_at.replace(node).is_none(), "{label:?} arrived twice");
        self.delivered += 1;
        let this = Last { place: label.place, sent_at: sent.at };
        let last = self.flows.insert((label.flow, node), this);
        let moved_at = self.kernels[label.from as usize].moved_at.max(self.kernels[node].moved_at);
        // What was on its way when an address changed may be overtaken by what comes from the new one.
        let is_ordered = !self.has_repeats && moved_at < this.sent_at;
        if let Some(last) = last.filter(|last| is_ordered && moved_at < last.sent_at) {
            assert!(last.place < this.place, "{label:?} came after {last:?}");
        }
    }

    /// The daemon of `node` writes an answer to a program of the node to its TUN.
    pub(crate) fn answer(&mut self, node: usize, answer: &[u8]) {
        (self.now, node, answer).hash(&mut self.trace);
        let Some(TooBig { destination, mtu, label, quoted }) = TooBig::of(answer) else { return };
        assert_eq!(label.from as usize, node, "{label:?} is answered at the wrong node");
        let sent = self.packets.get(&label.number).expect("an answer to a packet that no one sent");
        assert!(sent.bytes.starts_with(quoted), "another packet than {label:?} is quoted");
        assert!(sent.arrived_at.is_none() && mtu < sent.bytes.len(), "{label:?} is answered with {mtu}");
        let is_of_link = self.link_mtus.contains(&(mtu + OVERHEAD));
        assert!(mtu == LEAST_LIMIT || mtu > LEAST_LIMIT && is_of_link, "no path carries {mtu} in a tunnel");
        self.kernels[node].learn_inner_mtu(destination, mtu, self.now);
    }

    /// Changes the MTU of the link of a node.
    pub(crate) fn set_link_mtu(&mut self, node: usize, mtu: usize) {
        self.kernels[node].link_mtu = mtu;
        self.link_mtus.insert(mtu);
    }

    /// The daemon of `node` sends a datagram, which the kernel takes. It goes whole (DF) or in fragments.
    pub(crate) fn send(&mut self, node: usize, destination: SocketAddr, bytes: &[u8], is_whole: bool) {
        // The end is a MAC of the rest.
        let end = &bytes[bytes.len().saturating_sub(16)..];
        (self.now, node, destination, bytes.len(), end).hash(&mut self.trace);
        self.messages += 1;
        let kernel = &mut self.kernels[node];
        kernel.books.data_sent += u64::from(has_packet(bytes));
        kernel.books.turn.bytes_sent += bytes.len();
        let (room_since, source) = (kernel.room_since, kernel.outside());
        self.wire.check(self.now, room_since, self.kernels.len(), node, destination, bytes);
        let datagram = Datagram { source, destination, bytes: bytes.to_vec() };
        let Some(to) = self.node_at(destination) else { return };
        if self.cut[node] || self.cut[to] || self.chance.happens(self.faults.loss_percent) {
            return;
        }
        let path_mtu = self.kernels[node].link_mtu.min(self.kernels[to].link_mtu);
        if is_whole && bytes.len() + OUTER_HEADERS > path_mtu {
            let report = Flying::TooLong(destination.ip(), path_mtu);
            return self.fly(self.now + self.delay, node, report);
        }
        let copies = 1 + usize::from(self.chance.happens(self.faults.duplication_percent));
        for _ in 0..copies {
            let mut datagram = datagram.clone();
            if self.chance.happens(self.faults.damage_percent) {
                let at = self.chance.below(datagram.bytes.len());
                datagram.bytes[at] ^= 1 << self.chance.below(8);
            }
            let arrival =
                (self.now + self.delay).max(self.arrivals.get(&(node, to)).copied().unwrap_or_default());
            self.arrivals.insert((node, to), arrival);
            self.fly(arrival, to, Flying::Datagram(datagram));
        }
        if self.chance.happens(self.faults.repeat_percent) {
            self.has_repeats = true;
            let later = self.now + self.delay + self.chance.up_to(HELD_BACK);
            self.fly(later, to, Flying::Datagram(datagram));
        }
    }

    fn fly(&mut self, arrival: Duration, to: usize, flying: Flying) {
        self.serial += 1;
        self.flying.insert((arrival, self.serial), (to, flying));
    }

    /// Returns the node that a datagram to this address reaches now.
    fn node_at(&self, address: SocketAddr) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.outside() == address)
    }

    /// A stranger sends a datagram.
    pub(crate) fn stranger(&mut self, to: usize, bytes: Vec<u8>) {
        let source = SocketAddr::from(([203, 0, 113, self.chance.next() as u8], 666));
        let destination = self.kernels[to].outside();
        self.fly(self.now, to, Flying::Datagram(Datagram { source, destination, bytes }));
    }

    /// Returns when the next datagram arrives.
    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.flying.keys().next().map(|(at, _)| *at)
    }

    /// Delivers what has arrived by now.
    pub(crate) fn deliver(&mut self) {
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, datagram) = match entry.remove() {
                (to, Flying::Datagram(datagram)) => (to, datagram),
                (to, Flying::TooLong(destination, mtu)) => {
                    self.kernels[to].learn_path_mtu(destination, mtu, self.now);
                    continue;
                }
            };
            // The receiver may have another address by now.
            if self.kernels[to].outside() != datagram.destination || self.cut[to] {
                continue;
            }
            self.wire.arrives(self.now, to, &datagram.bytes);
            self.kernels[to].put(datagram);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }
}
