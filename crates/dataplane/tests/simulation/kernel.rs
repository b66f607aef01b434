//! The kernels of the nodes: their sockets, their TUNs, and books of what they gave to a daemon and took.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::task::Waker;
use std::time::Duration;

use weft_tun::{TunBatch, TunStatsSnapshot};
use weft_tunnel::Offload;

/// Bytes that wait in a socket at most; the kernel drops what comes then.
pub(crate) const SOCKET_BYTES: usize = 2 << 20;
/// Packets and super-packets that wait in a TUN at most; the kernel refuses more.
pub(crate) const TUN_PACKETS: usize = 4000;

/// The most that a turn does in each direction: the budgets of the event loop, the packets that waited for
/// the sessions of all peers, and a batch beyond.
const LONGEST_TURN: Turn =
    Turn { bytes_read: 1 << 20, bytes_sent: 1 << 20, bytes_received: 1280 << 10, bytes_written: 256 << 10 };

/// How long a kernel remembers the MTU of a path (net.ipv4.route.mtu_expires).
const MTU_EXPIRES: Duration = Duration::from_secs(600);
/// A daemon looks the MTU of a path up once in this time (`weft_udp`).
const ASK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// A packet or a super-packet that programs sent into the tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) bytes: Vec<u8>,
    pub(crate) offload: Offload,
    /// The packets on the wire.
    pub(crate) segments: u64,
}

/// An address translator in front of a node: only the peer that the node sent to can answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translator {
    pub(crate) outside: SocketAddr,
}

/// What becomes of datagrams that are longer than their path carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// They go in fragments.
    Fragmented,
    /// They are lost, and a router says so. From then on they go in fragments, and the daemon learns the MTU.
    Reported,
    /// The kernel refuses what its own link does not carry.
    Refused,
}

/// The MTU of a path.
#[derive(Clone, Copy, Debug)]
struct PathMtu {
    mtu: usize,
    until: Duration,
}

/// The kernel of a node, from the side of its daemon.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) address: SocketAddr,
    pub(crate) translator: Option<Translator>,
    /// Whether handshake messages have a separate socket.
    pub(crate) has_handshake_socket: bool,
    /// Whether received datagrams are joined (UDP GRO).
    pub(crate) joins: bool,
    /// Whether the TUN gives super-packets and leaves checksums to the daemon.
    pub(crate) has_offloads: bool,
    /// Whether a message goes to the packet thread of its receiver index; otherwise its source decides.
    pub(crate) steers: bool,
    /// What each packet thread has.
    pub(crate) ends: Vec<End>,
    pub(crate) socket_is_full: bool,
    /// When the socket was last full.
    pub(crate) room_since: Duration,
    pub(crate) tun_is_full: bool,
    pub(crate) too_long: TooLong,
    /// Bytes of the longest IP packet that the link of the node carries.
    pub(crate) link_mtu: usize,
    /// What routers say of paths to other nodes, and when the daemon asked for it.
    path_mtus: HashMap<IpAddr, PathMtu>,
    asked: HashMap<IpAddr, Duration>,
    /// What the daemon says of paths through the tunnel.
    inner_mtus: HashMap<IpAddr, PathMtu>,
    /// Share of the sends that fail, and of the receive calls.
    pub(crate) errors_percent: u64,
    pub(crate) tun_stats: TunStatsSnapshot,
    pub(crate) books: Books,
    wakers: HashMap<(usize, Wait), Waker>,
    /// When the address that others see changed last.
    pub(crate) moved_at: Duration,
}

/// The sockets of a packet thread and its queue of the TUN.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) received: VecDeque<Datagram>,
    received_bytes: usize,
    pub(crate) handshakes: VecDeque<Datagram>,
    pub(crate) given: VecDeque<Given>,
    /// What other packet threads read for this one.
    pub(crate) inbox: VecDeque<TunBatch>,
}

/// What a packet thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    Packets,
    TunRoom,
    Datagrams,
    Handshakes,
    SocketRoom,
}

/// What the kernel gave to a daemon, and took from it, since the daemon started. Datagrams with data are
/// those with a packet in them. Packets are those on the wire: a super-packet counts once per segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Books {
    pub(crate) packets_read: u64,
    pub(crate) packets_written: u64,
    pub(crate) data_sent: u64,
    pub(crate) data_refused: u64,
    pub(crate) others_refused: u64,
    /// Of those that were refused.
    pub(crate) too_long: u64,
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
    /// Checks that the turn did not do too much.
    pub(crate) fn check(self) {
        assert!(self.max(LONGEST_TURN) == LONGEST_TURN, "too much for a turn: {self:?}");
    }

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
            has_offloads: false,
            steers: true,
            ends: vec![End::default()],
            socket_is_full: false,
            room_since: Duration::ZERO,
            tun_is_full: false,
            too_long: TooLong::Fragmented,
            link_mtu: 1500,
            path_mtus: HashMap::new(),
            asked: HashMap::new(),
            inner_mtus: HashMap::new(),
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

    pub(crate) fn wait(&mut self, thread: usize, what: Wait, waker: &Waker) {
        self.wakers.insert((thread, what), waker.clone());
    }

    pub(crate) fn wake(&mut self, thread: usize, what: Wait) {
        if let Some(waker) = self.wakers.remove(&(thread, what)) {
            waker.wake();
        }
    }

    fn wake_all(&mut self, what: Wait) {
        (0..self.ends.len()).for_each(|thread| self.wake(thread, what));
    }

    pub(crate) fn fill_socket(&mut self, is_full: bool, now: Duration) {
        (self.socket_is_full, self.room_since) = (is_full, now);
        self.wake_all(Wait::SocketRoom);
    }

    pub(crate) fn fill_tun(&mut self, is_full: bool) {
        self.tun_is_full = is_full;
        self.wake_all(Wait::TunRoom);
    }

    /// Forgets a daemon that ended and leaves its sockets to another one.
    pub(crate) fn hand_over(&mut self) {
        self.books = Books::default();
        self.tun_stats = TunStatsSnapshot::default();
        self.wakers.clear();
        self.asked.clear();
        self.ends.iter_mut().for_each(|end| end.inbox.clear());
    }

    /// Forgets a daemon that ended: what it had not received is lost.
    pub(crate) fn restart(&mut self, now: Duration) {
        self.hand_over();
        self.moved_at = now;
        for end in &mut self.ends {
            *end = End { given: std::mem::take(&mut end.given), ..End::default() };
        }
    }

    /// A router says what the path to another node carries.
    pub(crate) fn learn_path_mtu(&mut self, destination: IpAddr, mtu: usize, now: Duration) {
        self.path_mtus.insert(destination, PathMtu { mtu, until: now + MTU_EXPIRES });
    }

    /// Returns the MTU of the path to another node, as far as it is known.
    pub(crate) fn path_mtu(&self, destination: IpAddr, now: Duration) -> usize {
        known(&self.path_mtus, destination, now).unwrap_or(self.link_mtu).min(self.link_mtu)
    }

    /// Reports whether the daemon looks the MTU of a path up now.
    pub(crate) fn asks(&mut self, destination: IpAddr, now: Duration) -> bool {
        let asks = self.asked.get(&destination).is_none_or(|asked| now - *asked >= ASK_EVERY);
        if asks {
            self.asked.insert(destination, now);
        }
        asks
    }

    /// The daemon says what the path through the tunnel carries.
    pub(crate) fn learn_inner_mtu(&mut self, destination: IpAddr, mtu: usize, now: Duration) {
        self.inner_mtus.insert(destination, PathMtu { mtu, until: now + MTU_EXPIRES });
    }

    /// Returns the bytes of the longest packet that programs send whole to a destination in the tunnel.
    pub(crate) fn inner_mtu(&self, destination: IpAddr, now: Duration) -> usize {
        known(&self.inner_mtus, destination, now).unwrap_or(usize::MAX)
    }

    /// Puts what a program sent in this flow into the TUN. Returns false if the queue of the flow is full.
    pub(crate) fn give(&mut self, flow: u32, given: Given) -> bool {
        let thread = flow as usize % self.ends.len();
        let queue = &mut self.ends[thread].given;
        if queue.len() >= TUN_PACKETS {
            return false;
        }
        queue.push_back(given);
        self.wake(thread, Wait::Packets);
        true
    }

    /// Takes the next datagram of a socket.
    pub(crate) fn take(&mut self, thread: usize, of_handshakes: bool) -> Option<Datagram> {
        let end = &mut self.ends[thread];
        let queue = if of_handshakes { &mut end.handshakes } else { &mut end.received };
        let datagram = queue.pop_front()?;
        if !of_handshakes {
            end.received_bytes -= datagram.bytes.len();
        }
        self.books.received += 1;
        self.books.handshakes_received += u64::from(!is_data_message(&datagram.bytes));
        self.books.turn.bytes_received += datagram.bytes.len();
        Some(datagram)
    }

    /// A datagram arrives.
    pub(crate) fn put(&mut self, datagram: Datagram) {
        let thread = self.thread_of(&datagram);
        let end = &mut self.ends[thread];
        if self.has_handshake_socket && !is_data_message(&datagram.bytes) {
            end.handshakes.push_back(datagram);
            self.wake(thread, Wait::Handshakes);
        } else if end.received_bytes + datagram.bytes.len() <= SOCKET_BYTES {
            end.received_bytes += datagram.bytes.len();
            end.received.push_back(datagram);
            self.wake(thread, Wait::Datagrams);
        }
    }

    /// Returns the packet thread that receives a datagram.
    fn thread_of(&self, datagram: &Datagram) -> usize {
        let number = if self.steers {
            let index = match datagram.bytes.first() {
                Some(2) => datagram.bytes.get(8..12),
                Some(3 | 4) => datagram.bytes.get(4..8),
                // Initiations are admitted by the first.
                _ => None,
            };
            index.map_or(0, |index| u32::from_be_bytes(*index.first_chunk().unwrap()))
        } else {
            datagram.source.port().into()
        };
        number as usize % self.ends.len()
    }
}

fn known(mtus: &HashMap<IpAddr, PathMtu>, destination: IpAddr, now: Duration) -> Option<usize> {
    mtus.get(&destination).filter(|path| now < path.until).map(|path| path.mtu)
}

fn is_data_message(bytes: &[u8]) -> bool {
    bytes.first() == Some(&4)
}

/// Whether a datagram has a packet in it. A keepalive has 32 bytes.
pub(crate) fn has_packet(bytes: &[u8]) -> bool {
    is_data_message(bytes) && bytes.len() > 32
}
