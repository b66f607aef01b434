//! The network between the nodes, and the kernels of the nodes: their sockets and their TUNs.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use weft_tun::TunStatsSnapshot;

use crate::chance::Chance;
use crate::packet::Label;

/// Bytes that wait in a socket at most; the kernel drops what comes then.
pub(crate) const SOCKET_BYTES: usize = 2 << 20;
/// Packets that wait in a TUN at most; the kernel refuses more.
const TUN_PACKETS: usize = 4000;
/// Reject-After-Time of the whitepaper, and twice the longest way.
const SESSION: Duration = Duration::from_secs(180 + 4);

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

#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// An address translator in front of a node: only the peer that the node sent to can answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translator {
    pub(crate) outside: SocketAddr,
}

/// The kernel of a node, from the side of its daemon.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) address: SocketAddr,
    pub(crate) translator: Option<Translator>,
    /// Whether handshake messages have a socket of their own.
    pub(crate) has_handshake_socket: bool,
    /// Whether received datagrams are joined.
    pub(crate) joins: bool,
    pub(crate) received: VecDeque<Datagram>,
    received_bytes: usize,
    pub(crate) handshakes: VecDeque<Datagram>,
    /// What programs sent into the tunnel.
    pub(crate) given: VecDeque<Vec<u8>>,
    pub(crate) socket_is_full: bool,
    /// When the socket was last full.
    room_since: Duration,
    pub(crate) tun_is_full: bool,
    /// Share of the sends that fail, and of the receive calls.
    pub(crate) errors_percent: u64,
    pub(crate) tun_stats: TunStatsSnapshot,
    pub(crate) books: Books,
    wakers: HashMap<Wait, Waker>,
    /// When the address that others see changed last.
    pub(crate) moved_at: Duration,
}

/// What a daemon waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    Packets,
    TunRoom,
    Datagrams,
    Handshakes,
    SocketRoom,
}

/// What the kernel gave to a daemon, and took from it, since the daemon started. Datagrams with data are
/// those with a packet in them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Books {
    pub(crate) packets_read: u64,
    pub(crate) packets_written: u64,
    pub(crate) data_sent: u64,
    pub(crate) data_refused: u64,
    pub(crate) others_refused: u64,
    pub(crate) received: u64,
    pub(crate) handshakes_received: u64,
    /// In the turn that runs.
    pub(crate) turn: Turn,
}

/// What a daemon did in a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) bytes_read: usize,
    pub(crate) bytes_sent: usize,
    pub(crate) bytes_received: usize,
    pub(crate) bytes_written: usize,
}

impl Turn {
    /// Returns the larger one of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            bytes_read: self.bytes_read.max(other.bytes_read),
            bytes_sent: self.bytes_sent.max(other.bytes_sent),
            bytes_received: self.bytes_received.max(other.bytes_received),
            bytes_written: self.bytes_written.max(other.bytes_written),
        }
    }
}

impl Kernel {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            translator: None,
            has_handshake_socket: false,
            joins: false,
            received: VecDeque::new(),
            received_bytes: 0,
            handshakes: VecDeque::new(),
            given: VecDeque::new(),
            socket_is_full: false,
            room_since: Duration::ZERO,
            tun_is_full: false,
            errors_percent: 0,
            tun_stats: TunStatsSnapshot::default(),
            books: Books::default(),
            wakers: HashMap::new(),
            moved_at: Duration::ZERO,
        }
    }

    /// The address that other nodes see.
    pub(crate) fn outside(&self) -> SocketAddr {
        self.translator.map_or(self.address, |translator| translator.outside)
    }

    pub(crate) fn wait(&mut self, what: Wait, waker: &Waker) {
        self.wakers.insert(what, waker.clone());
    }

    pub(crate) fn wake(&mut self, what: Wait) {
        if let Some(waker) = self.wakers.remove(&what) {
            waker.wake();
        }
    }

    pub(crate) fn fill_socket(&mut self, is_full: bool, now: Duration) {
        (self.socket_is_full, self.room_since) = (is_full, now);
        self.wake(Wait::SocketRoom);
    }

    /// Forgets a daemon that ended: what it had not received is lost.
    pub(crate) fn restart(&mut self) {
        self.books = Books::default();
        self.tun_stats = TunStatsSnapshot::default();
        self.wakers.clear();
        self.received.clear();
        self.received_bytes = 0;
        self.handshakes.clear();
    }

    /// Takes the next datagram of a socket.
    pub(crate) fn take(&mut self, of_handshakes: bool) -> Option<Datagram> {
        let queue = if of_handshakes { &mut self.handshakes } else { &mut self.received };
        let datagram = queue.pop_front()?;
        if !of_handshakes {
            self.received_bytes -= datagram.bytes.len();
        }
        self.books.received += 1;
        self.books.handshakes_received += u64::from(!is_data_message(&datagram.bytes));
        self.books.turn.bytes_received += datagram.bytes.len();
        Some(datagram)
    }

    fn put(&mut self, datagram: Datagram) {
        if self.has_handshake_socket && !is_data_message(&datagram.bytes) {
            self.handshakes.push_back(datagram);
            self.wake(Wait::Handshakes);
        } else if self.received_bytes + datagram.bytes.len() <= SOCKET_BYTES {
            self.received_bytes += datagram.bytes.len();
            self.received.push_back(datagram);
            self.wake(Wait::Datagrams);
        }
    }
}

fn is_data_message(bytes: &[u8]) -> bool {
    bytes.first() == Some(&4)
}

/// Whether a datagram has a packet in it. A keepalive has 32 bytes.
pub(crate) fn has_packet(bytes: &[u8]) -> bool {
    is_data_message(bytes) && bytes.len() > 32
}

/// An inner packet on its way.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    at: Duration,
    has_arrived: bool,
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
    /// Datagrams under way, to the kernel of a node, by the time of arrival.
    flying: BTreeMap<(Duration, u64), (usize, Datagram)>,
    serial: u64,
    /// Of each pair of nodes, the last arrival: the network keeps the order.
    arrivals: HashMap<(usize, usize), Duration>,
    packets: HashMap<u64, Sent>,
    flows: HashMap<u32, Last>,
    next_packet: u64,
    /// By node and receiver index: since when the node may have the session, and the counters that it used.
    sessions: HashMap<(usize, u32), (Duration, HashSet<u64>)>,
    /// Of each node, when it sent initiations in the last minute, by destination.
    initiations: HashMap<(usize, SocketAddr), VecDeque<Duration>>,
    /// Of everything that is on the wire or arrives.
    trace: DefaultHasher,
    pub(crate) delivered: u64,
    pub(crate) messages: u64,
}

impl Network {
    pub(crate) fn new(seed: u64, now: Duration, kernels: Vec<Kernel>) -> Self {
        Self {
            now,
            chance: Chance::new(seed),
            delay: Duration::from_millis(20),
            faults: Faults::NONE,
            has_repeats: false,
            cut: vec![false; kernels.len()],
            kernels,
            flying: BTreeMap::new(),
            serial: 0,
            arrivals: HashMap::new(),
            packets: HashMap::new(),
            flows: HashMap::new(),
            next_packet: 0,
            sessions: HashMap::new(),
            initiations: HashMap::new(),
            trace: DefaultHasher::new(),
            delivered: 0,
            messages: 0,
        }
    }

    /// Returns a number that differs if anything was sent or arrived otherwise.
    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Gives a packet to the TUN of its sender. Returns its number, or `None` if the TUN is full.
    pub(crate) fn give(&mut self, label: Label, packet: Vec<u8>) -> bool {
        let kernel = &mut self.kernels[label.from as usize];
        if kernel.given.len() >= TUN_PACKETS {
            return false;
        }
        kernel.given.push_back(packet.clone());
        kernel.wake(Wait::Packets);
        self.packets.insert(label.number, Sent { bytes: packet, at: self.now, has_arrived: false });
        true
    }

    pub(crate) fn new_number(&mut self) -> u64 {
        self.next_packet += 1;
        self.next_packet
    }

    pub(crate) fn has_arrived(&self, number: u64) -> bool {
        self.packets.get(&number).is_none_or(|sent| sent.has_arrived)
    }

    /// A packet that the daemon of `node` wrote to its TUN.
    pub(crate) fn arrive(&mut self, node: usize, packet: &[u8]) {
        let label = Label::of(packet);
        (self.now, node, packet).hash(&mut self.trace);
        assert_eq!(label.to as usize, node, "{label:?} is at the wrong node");
        let sent = self.packets.get_mut(&label.number).expect("a packet that no one sent");
        assert_eq!(sent.bytes, packet, "{label:?} is not what was sent");
        assert!(!std::mem::replace(&mut sent.has_arrived, true), "{label:?} arrived twice");
        self.delivered += 1;
        let this = Last { place: label.place, sent_at: sent.at };
        let last = self.flows.insert(label.flow, this);
        let moved_at = self.kernels[label.from as usize].moved_at.max(self.kernels[node].moved_at);
        // What was on its way when an address changed may be overtaken by what comes from the new one.
        let is_ordered = !self.has_repeats && moved_at < this.sent_at;
        if let Some(last) = last.filter(|last| is_ordered && moved_at < last.sent_at) {
            assert!(last.place < this.place, "{label:?} came after {last:?}");
        }
    }

    /// The daemon of `node` sends a datagram, which the kernel takes.
    pub(crate) fn send(&mut self, node: usize, destination: SocketAddr, bytes: &[u8]) {
        (self.now, node, destination, bytes).hash(&mut self.trace);
        self.messages += 1;
        self.kernels[node].books.data_sent += u64::from(has_packet(bytes));
        self.kernels[node].books.turn.bytes_sent += bytes.len();
        self.check_message(node, destination, bytes);
        let source = self.kernels[node].outside();
        let datagram = Datagram { source, destination, bytes: bytes.to_vec() };
        let Some(to) = self.node_at(destination) else { return };
        if self.cut[node] || self.cut[to] || self.chance.happens(self.faults.loss_percent) {
            return;
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
            self.fly(arrival, to, datagram);
        }
        if self.chance.happens(self.faults.repeat_percent) {
            self.has_repeats = true;
            let later = self.now + self.delay + self.chance.up_to(Duration::from_secs(300));
            self.fly(later, to, datagram);
        }
    }

    fn fly(&mut self, arrival: Duration, to: usize, datagram: Datagram) {
        self.serial += 1;
        self.flying.insert((arrival, self.serial), (to, datagram));
    }

    /// Returns the node that a datagram to this address reaches now.
    fn node_at(&self, address: SocketAddr) -> Option<usize> {
        self.kernels.iter().position(|kernel| kernel.outside() == address)
    }

    /// Checks what a stranger on the wire can see of a message.
    fn check_message(&mut self, node: usize, destination: SocketAddr, bytes: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        match (bytes[0], bytes.len()) {
            (1, 148) | (2, 92) => {
                let index = word(4);
                // A new session of whoever answers to this index.
                self.sessions.retain(|(sender, of), _| *sender == node || *of != index);
                for other in (0..self.kernels.len()).filter(|other| *other != node) {
                    self.sessions.insert((other, index), (self.now, HashSet::new()));
                }
                if bytes[0] == 1 {
                    self.check_initiation(node, destination);
                } else if let Some((since, _)) = self.sessions.get_mut(&(node, word(8))) {
                    // The initiation may have been under way for long.
                    *since = self.now;
                }
            }
            (3, 64) => {}
            (4, len) if len >= 32 => {
                let counter = u64::from_le_bytes(*bytes[8..].first_chunk().unwrap());
                let session = self.sessions.get_mut(&(node, word(4)));
                let (since, counters) = session.expect("a session that no one announced");
                // What waited for room in the socket was sealed before.
                let room_since = self.kernels[node].room_since;
                let is_backlog = self.now - room_since < Duration::from_secs(1);
                let age = self.now - *since;
                assert!(is_backlog || age <= SESSION, "a session of {age:?} is in use");
                assert!(counters.insert(counter), "the nonce {counter} is used twice");
            }
            other => panic!("that is no message: {other:?}"),
        }
    }

    /// A node asks the same peer at most once in five seconds, but for a change of the network or of the
    /// configuration.
    fn check_initiation(&mut self, node: usize, destination: SocketAddr) {
        let minute = self.now.saturating_sub(Duration::from_secs(60));
        let times = self.initiations.entry((node, destination)).or_default();
        times.push_back(self.now);
        while times.front().is_some_and(|at| *at < minute) {
            times.pop_front();
        }
        assert!(times.len() <= 24, "{} initiations in a minute", times.len());
    }

    /// A stranger sends a datagram.
    pub(crate) fn stranger(&mut self, to: usize, bytes: Vec<u8>) {
        let source = SocketAddr::from(([203, 0, 113, self.chance.next() as u8], 666));
        let destination = self.kernels[to].outside();
        self.fly(self.now, to, Datagram { source, destination, bytes });
    }

    /// Returns when the next datagram arrives.
    pub(crate) fn next_arrival(&self) -> Option<Duration> {
        self.flying.keys().next().map(|(at, _)| *at)
    }

    /// Delivers what has arrived by now.
    pub(crate) fn deliver(&mut self) {
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, datagram) = entry.remove();
            // The receiver may have another address by now.
            if self.kernels[to].outside() != datagram.destination || self.cut[to] {
                continue;
            }
            if let (Some(2), Some(index)) = (datagram.bytes.first(), datagram.bytes.get(4..8))
                && let Some(index) = index.first_chunk()
                && let Some((since, counters)) = self.sessions.get_mut(&(to, u32::from_le_bytes(*index)))
                && counters.is_empty()
            {
                // A response that was under way for long.
                *since = self.now;
            }
            self.kernels[to].put(datagram);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }
}
