//! The endpoint: sockets by number, and the order in which they send.
//!
//! `inbound` takes packets to them, `sockets` has the calls of the application.

mod inbound;
mod sockets;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use weft_tunnel::Offload;

use crate::chunk::SMALL;
use crate::common::{Common, Reply};
use crate::half_open::{Due, HalfOpens};
use crate::reassembly::Reassembly;
use crate::secret::{Secret, Tuple};
use crate::slots::Slots;
use crate::tcp::{Connection, Transmitted};
use crate::time_wait::{TimeWait, TimeWaits};
use crate::{Config, Event, ListenerId, Stats, StreamId, StreamState, udp};

/// The least MTU: below it IPv4 hosts need not send (RFC 791).
const MIN_MTU: u16 = 576;
/// What a connection may have beyond the memory: a window of 4 KiB in two buffers, the one that its
/// application has taken, and one to send.
const MINIMUM: u64 = 4 * SMALL as u64;
/// After how many nanoseconds it is looked for connections that stand still, where there was none.
const LOOK_AGAIN: u64 = 1_000_000_000;
/// Bytes that a connection sends before the next one has its turn.
const QUANTUM: u64 = 64 << 10;

/// Where [`Endpoint::transmit`] writes packets.
pub trait PacketSink {
    /// Returns the free bytes: the next packet is written to their start. With the first packet of a call
    /// these should be at least 65,535 and [`weft_tunnel::TAILROOM`].
    fn spare_mut(&mut self) -> &mut [u8];

    /// Keeps the first `len` bytes of [`Self::spare_mut`] as a packet with this work left. Returns false if
    /// it does not fit: then nothing is kept, and the endpoint ends the call.
    fn commit(&mut self, len: usize, offload: Offload) -> bool;
}

/// What a flow belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Stream(u32),
    HalfOpen(u32),
    TimeWait(u32),
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    at: SocketAddr,
    backlog: usize,
    ready: VecDeque<crate::StreamId>,
    waits: bool,
}

/// Limits how many errors are sent: a bucket of tokens.
#[derive(Debug)]
struct ErrorLimit {
    tokens: u64,
    at: u64,
}

impl ErrorLimit {
    const BURST: u64 = 50;
    /// Ten milliseconds: 100 a second.
    const INTERVAL: u64 = 10_000_000;

    fn allows(&mut self, now: u64) -> bool {
        let new = now.saturating_sub(self.at) / Self::INTERVAL;
        self.tokens = (self.tokens + new).min(Self::BURST);
        self.at += new * Self::INTERVAL;
        let allows = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allows
    }
}

/// A TCP/IP endpoint.
#[derive(Debug)]
pub struct Endpoint {
    common: Common,
    start: Instant,
    addresses: Vec<IpAddr>,
    streams: Slots<Box<Connection>>,
    /// Those that applications have released, the oldest first, also some that are over.
    orphans: VecDeque<StreamId>,
    flows: HashMap<Tuple, Target>,
    /// The stream of the last segment: most often the next one is for the same.
    last: Option<(Tuple, u32)>,
    timers: crate::timers::Timers,
    /// Streams that got something in this batch.
    touched: Vec<u32>,
    /// Streams that have an acknowledgement to send, and those that have something else.
    ack_queue: VecDeque<u32>,
    run_queue: VecDeque<u32>,
    listeners: Slots<Listener>,
    half_open: HalfOpens,
    time_wait: TimeWaits,
    udp: Slots<udp::Socket>,
    udp_ports: HashMap<u16, Vec<u32>>,
    udp_queue: VecDeque<u32>,
    reassembly: Reassembly,
    error_limit: ErrorLimit,
    /// The owner of which no connection stands still, and until when that is believed.
    none_stands_still: (usize, u64),
    /// Counters of RFC 6056, section 3.3.4.
    port_counters: [u16; 64],
}

impl Endpoint {
    /// Makes an endpoint. Its clock begins at `now`.
    pub fn new(config: Config, now: Instant) -> Self {
        let Config { addresses, mtu, memory, limits, secret } = config;
        Self {
            common: Common::new(limits, Secret::new(secret), mtu.max(MIN_MTU), memory),
            start: now,
            addresses,
            streams: Slots::default(),
            orphans: VecDeque::new(),
            flows: HashMap::new(),
            last: None,
            timers: crate::timers::Timers::default(),
            touched: Vec::new(),
            ack_queue: VecDeque::new(),
            run_queue: VecDeque::new(),
            listeners: Slots::default(),
            half_open: HalfOpens::default(),
            time_wait: TimeWaits::default(),
            udp: Slots::default(),
            udp_ports: HashMap::new(),
            udp_queue: VecDeque::new(),
            reassembly: Reassembly::default(),
            error_limit: ErrorLimit { tokens: ErrorLimit::BURST, at: 0 },
            none_stands_still: (0, 0),
            port_counters: [0; 64],
        }
    }

    /// Takes IP packets from the tunnel, in order and with complete checksums, that arrived together: a
    /// connection makes one decision about an acknowledgement for all of them.
    pub fn handle_batch<'a>(&mut self, packets: impl IntoIterator<Item = &'a [u8]>, now: Instant) {
        self.tick(now);
        for packet in packets {
            self.common.stats.packets_in += 1;
            self.packet(packet);
        }
        while let Some(index) = self.touched.pop() {
            if let Some(stream) = self.streams.get_mut(index) {
                stream.is_touched = false;
                stream.end_batch(&mut self.common);
            }
            self.settle(index);
        }
    }

    /// Writes packets until the sink is full (true) or nothing may be sent now (false).
    ///
    /// TCP payload comes in super-packets with [`Offload::TcpSegmentation`], also where it is one segment.
    pub fn transmit(&mut self, now: Instant, out: &mut impl PacketSink) -> bool {
        self.tick(now);
        !self.common.transmit_replies(out)
            || self.transmit_acks(out)
            || self.transmit_streams(out)
            || self.transmit_udp(out)
    }

    /// Sends acknowledgements of streams that have nothing else to send. Returns true if the sink is full.
    fn transmit_acks(&mut self, out: &mut impl PacketSink) -> bool {
        while let Some(index) = self.ack_queue.front().copied() {
            if let Some(stream) = self.streams.get_mut(index)
                && stream.wants_ack()
                && !stream.is_in_run_queue
                && stream.transmit(&mut self.common, out) == Transmitted::Full
            {
                return true;
            }
            self.ack_queue.pop_front();
            if let Some(stream) = self.streams.get_mut(index) {
                stream.is_in_ack_queue = false;
                // What waits for its turn takes the acknowledgement along.
                if !stream.is_in_run_queue {
                    self.settle(index);
                }
            }
        }
        false
    }

    /// Lets streams take turns (deficit round robin). Returns true if the sink is full.
    fn transmit_streams(&mut self, out: &mut impl PacketSink) -> bool {
        while let Some(index) = self.run_queue.front().copied() {
            let Some(stream) = self.streams.get_mut(index) else {
                self.run_queue.pop_front();
                continue;
            };
            if stream.deficit == 0 {
                stream.deficit = QUANTUM;
            }
            match stream.transmit(&mut self.common, out) {
                Transmitted::Packet(bytes) => {
                    stream.deficit = stream.deficit.saturating_sub(bytes);
                    if stream.deficit == 0 {
                        self.run_queue.rotate_left(1);
                        // Its turn may be long from now, and its timer runs from here.
                        self.settle(index);
                    }
                }
                Transmitted::Nothing => {
                    stream.deficit = 0;
                    stream.is_in_run_queue = false;
                    self.run_queue.pop_front();
                    self.settle(index);
                }
                Transmitted::Full => {
                    self.settle(index);
                    return true;
                }
            }
        }
        false
    }

    /// Lets UDP sockets take turns. Returns true if the sink is full.
    fn transmit_udp(&mut self, out: &mut impl PacketSink) -> bool {
        while let Some(index) = self.udp_queue.front().copied() {
            let addresses = &self.addresses;
            let source = |to: SocketAddr| source_for(addresses, to.ip());
            let sent = match self.udp.get_mut(index) {
                Some(socket) => socket.transmit(source, &mut self.common, out),
                None => Transmitted::Nothing,
            };
            match sent {
                Transmitted::Packet(_) => self.udp_queue.rotate_left(1),
                Transmitted::Full => return true,
                Transmitted::Nothing => {
                    self.udp_queue.pop_front();
                    if let Some(socket) = self.udp.get_mut(index) {
                        socket.is_in_queue = false;
                    }
                }
            }
        }
        false
    }

    /// Reports whether [`Self::transmit`] has something to send.
    pub fn has_output(&self) -> bool {
        self.common.has_replies()
            || !self.ack_queue.is_empty()
            || !self.run_queue.is_empty()
            || !self.udp_queue.is_empty()
    }

    /// Returns when [`Self::handle_timeout`] wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (time_wait, reassembly) = (self.time_wait.next_deadline(), self.reassembly.next_deadline());
        let deadlines = [self.timers.next(), self.half_open.next_deadline(), time_wait, reassembly];
        Some(self.start + Duration::from_nanos(deadlines.into_iter().flatten().min()?))
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tick(now);
        let now = self.common.now;
        while let Some(index) = self.timers.pop(now) {
            if let Some(stream) = self.streams.get_mut(index) {
                stream.timeout(&mut self.common);
                self.settle(index);
            }
        }
        while let Some(due) = self.half_open.due(now) {
            match due {
                Due::Again(index) => self.answer_syn(index),
                Due::GiveUp(index) => self.forget_half_open(index),
            }
        }
        self.expire_time_wait();
        self.reassembly.expire(now);
    }

    /// Sets the networks of each owner of peers' addresses. Where memory is short, connections of the owner
    /// with the most give way to those of others.
    pub fn set_owners(&mut self, networks: &[Vec<IpNet>]) {
        self.common.set_owners(networks);
        for index in self.streams.indices() {
            if let Some(stream) = self.streams.get_mut(index) {
                stream.owner = self.common.owner(stream.tuple.peer);
                self.common.owned[stream.owner] += stream.reserved();
            }
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.common.events.pop_front()
    }

    /// Returns counters of the endpoint.
    pub fn stats(&self) -> Stats {
        Stats {
            streams: self.streams.len() as u64,
            half_open: self.half_open.len() as u64,
            time_wait: self.time_wait.len() as u64,
            reserved_bytes: self.common.reserved,
            ..self.common.stats
        }
    }

    /// Changes the length of the longest packet of the tunnel.
    pub fn set_mtu(&mut self, mtu: u16, now: Instant) {
        self.tick(now);
        self.common.mtu = mtu.max(MIN_MTU);
        for index in self.streams.indices() {
            if let Some(stream) = self.streams.get_mut(index) {
                let mtu = self.common.path_mtu(stream.tuple.peer);
                stream.set_mtu(mtu);
            }
            self.settle(index);
        }
    }

    /// The clock never goes back, also where the caller's does.
    fn tick(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.start).as_nanos();
        self.common.now = self.common.now.max(u64::try_from(elapsed).unwrap_or(u64::MAX / 2));
    }

    /// Brings everything about a stream up to date after it changed: queues, timer, tables.
    fn settle(&mut self, index: u32) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        stream.update_persist(&self.common);
        stream.account(&mut self.common);
        if matches!(stream.state, StreamState::Closed | StreamState::TimeWait) {
            if !std::mem::replace(&mut stream.is_detached, true) {
                self.flows.remove(&stream.tuple);
                if stream.state == StreamState::TimeWait {
                    let record = stream.time_wait();
                    self.enter_time_wait(record);
                }
            }
            self.timers.remove(index);
            if let Some(stream) = self.streams.get_mut(index)
                && stream.is_released
            {
                stream.dispose(&mut self.common);
                self.streams.remove(index);
            }
            return;
        }
        if stream.is_released && !std::mem::replace(&mut stream.is_orphan, true) {
            self.orphans.push_back(stream.id);
            self.limit_orphans();
        }
        let Some(stream) = self.streams.get_mut(index) else { return };
        if !stream.is_in_run_queue && stream.has_plan(self.common.now) {
            stream.is_in_run_queue = true;
            self.run_queue.push_back(index);
        }
        if stream.wants_ack() && !stream.is_in_run_queue && !stream.is_in_ack_queue {
            stream.is_in_ack_queue = true;
            self.ack_queue.push_back(index);
        }
        if let Some(deadline) = stream.deadline() {
            self.timers.set(index, deadline);
        }
    }

    /// Reports whether there is room for one more connection with this window to a peer. Others give way:
    /// released ones first.
    fn has_room(&mut self, window: u16, peer: IpAddr) -> bool {
        let most = self.common.memory / 8 * 7;
        while self.common.reserved + u64::from(window) > most {
            if !self.reset_orphan(|stream| stream.reserved() > 0) && !self.take_from_the_largest(peer) {
                return false;
            }
        }
        self.streams.len() < self.common.limits.streams as usize || self.reset_orphan(|_| true)
    }

    /// Resets connections of the owner with the most memory, those first that have moved least recently,
    /// until a small part of all memory is free: what it costs to look for them is spread over those that
    /// follow. For a connection of the same owner only those give way that have stood still for long. Returns
    /// whether there was one.
    fn take_from_the_largest(&mut self, peer: IpAddr) -> bool {
        let (now, owner) = (self.common.now, self.common.owner(peer));
        let Some((largest, most)) = (0..).zip(&self.common.owned).max_by_key(|(_, owned)| **owned) else {
            return false;
        };
        let is_own = self.common.owned.get(owner) == Some(most);
        let victim_of = if is_own { owner } else { largest };
        let (of, until) = self.none_stands_still;
        if is_own && of == owner && now < until {
            return false;
        }
        let of_owner = self.streams.iter().filter(|(_, it)| it.owner == victim_of && it.reserved() > 0);
        let mut victims: Vec<(u64, u32)> = of_owner
            .map(|(index, stream)| {
                let (since, patience) = stream.moved_at();
                (if is_own { since + patience } else { since }, index)
            })
            .collect();
        victims.sort_unstable();
        let mut wanted = self.common.memory / 256;
        let mut has_one = false;
        for (from, index) in victims {
            if is_own && from > now {
                // One that gets something to send or to take has less patience.
                self.none_stands_still = (owner, from.min(now + LOOK_AGAIN));
                break;
            }
            let Some(stream) = self.streams.get_mut(index) else { continue };
            has_one = true;
            let gained = stream.reserved();
            stream.give_way(&mut self.common);
            self.common.stats.gave_way += 1;
            self.common.events.push_back(Event::GaveWay(stream.tuple.peer));
            self.settle(index);
            if gained >= wanted {
                break;
            }
            wanted -= gained;
        }
        has_one
    }

    fn limit_orphans(&mut self) {
        let most = self.common.limits.orphans as usize;
        if self.orphans.len() > most {
            let streams = &self.streams;
            self.orphans.retain(|id| streams.has(id.index, id.generation));
        }
        while self.orphans.len() > most {
            self.reset_orphan(|_| true);
        }
    }

    /// Resets the oldest released connection of which `is_wanted` says so. Returns whether there was one.
    fn reset_orphan(&mut self, is_wanted: impl Fn(&Connection) -> bool) -> bool {
        let streams = &self.streams;
        self.orphans.retain(|id| streams.has(id.index, id.generation));
        let is_wanted = |id: &StreamId| streams.get(id.index).is_some_and(|stream| is_wanted(stream));
        let place = self.orphans.iter().position(is_wanted);
        let Some(id) = place.and_then(|place| self.orphans.remove(place)) else { return false };
        if let Some(stream) = self.streams.get_mut(id.index) {
            stream.reset(&mut self.common);
            self.settle(id.index);
        }
        true
    }

    fn enter_time_wait(&mut self, record: TimeWait) {
        let index = self.time_wait.insert(record, self.common.now);
        self.flows.insert(record.tuple, Target::TimeWait(index));
        self.answer_in_time_wait(index);
        self.expire_time_wait();
    }

    fn expire_time_wait(&mut self) {
        let most = self.common.limits.time_wait as usize;
        while let Some(record) = self.time_wait.expire(self.common.now, most) {
            self.flows.remove(&record.tuple);
        }
    }

    /// Sends the SYN-ACK of a half-open connection.
    fn answer_syn(&mut self, index: u32) {
        if let Some(record) = self.half_open.get(index) {
            let header = record.handshake.answer(&record.tuple, &self.common);
            let reply = Reply::Tcp(record.tuple, header);
            self.common.reply(reply);
        }
    }

    fn forget_half_open(&mut self, index: u32) {
        if let Some(record) = self.half_open.remove(index) {
            self.flows.remove(&record.tuple);
        }
    }

    /// Panics if something is wrong: for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        let mut reserved = 0;
        for (index, stream) in self.streams.iter() {
            stream.check();
            reserved += stream.reserved();
            if !stream.is_detached {
                assert_eq!(self.flows.get(&stream.tuple), Some(&Target::Stream(index)));
            }
        }
        assert_eq!(reserved, self.common.reserved, "memory");
        assert_eq!(reserved, self.common.owned.iter().sum::<u64>(), "memory of the owners");
        let always = self.streams.len() as u64 * MINIMUM;
        assert!(reserved <= self.common.memory + always, "{reserved} bytes of {}", self.common.memory);
        let attached = self.streams.iter().filter(|(_, stream)| !stream.is_detached).count();
        assert_eq!(self.flows.len(), attached + self.half_open.len() + self.time_wait.len());
    }
}

/// Returns the first address of the family of `to`.
fn source_for(addresses: &[IpAddr], to: IpAddr) -> Option<IpAddr> {
    addresses.iter().copied().find(|address| address.is_ipv4() == to.is_ipv4())
}
