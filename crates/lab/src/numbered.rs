//! Numbered UDP flows: each datagram carries its flow and sequence number and content derived from both, so
//! that every loss, reordering, duplicate and corruption is detected and counted.
//!
//! One thread sends all flows in turn at an even rate, a second one receives them and replies, a third one
//! receives the replies.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Namespace;
use super::pace::Pace;
use super::traffic::Amount;

mod check;
mod datagram;
mod sockets;

pub use check::FlowCheck;
pub use datagram::MIN_DATAGRAM;

use datagram::{Header, Kind, MAX_DATAGRAM};
use sockets::{Sockets, grid};

/// The flows have ended when everything has arrived, and nothing more for this long: nothing came twice.
const QUIET: Duration = Duration::from_millis(300);
/// What is missing is lost when nothing has arrived for this long: on a busy machine a program may wait a
/// second and more for a processor.
const LOST: Duration = Duration::from_secs(3);
/// The longest wait for datagrams in flight.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a receiver sleeps at most before it checks whether it should end.
const TICK: Duration = Duration::from_millis(50);

/// When the receiver of a flow replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    Never,
    /// After each group of this many datagrams of the flow.
    EveryPackets(u64),
    /// When a datagram arrives at least this long after the last reply, or after the flow's first datagram.
    Every(Duration),
    /// To every datagram of the flow from this number of received datagrams on.
    From(u64),
}

/// What to send, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct NumberedOptions {
    /// Number of flows; each has a distinct pair of source and destination ports.
    pub flows: u32,
    /// UDP payload of a datagram in bytes, between [`MIN_DATAGRAM`] and 64 KiB less headers.
    pub datagram_bytes: usize,
    /// Datagrams a second over all flows together.
    pub datagrams_per_second: u32,
    /// Datagrams of one flow that are sent back to back before the next flow's turn.
    pub burst: u16,
    /// Whether to pass each burst to the kernel as one super-packet (UDP_SEGMENT).
    pub segmentation_offload: bool,
    /// When to end: after a number of datagrams over all flows, or at a time.
    pub amount: Amount,
    /// When the receiver replies.
    pub replies: Replies,
}

impl Default for NumberedOptions {
    fn default() -> Self {
        Self {
            flows: 1,
            datagram_bytes: 1200,
            datagrams_per_second: 1000,
            burst: 1,
            segmentation_offload: false,
            amount: Amount::Count(1000),
            replies: Replies::Never,
        }
    }
}

/// Counts of the datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Datagrams that the kernel accepted for sending.
    pub sent: u64,
    /// Datagrams that the kernel refused to send.
    pub refused: u64,
    /// Distinct datagrams that arrived.
    pub received: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived behind a later one of their flow.
    pub out_of_order: u64,
    pub duplicates: u64,
    /// Datagrams with content that does not match their number, or of no known flow.
    pub corrupt: u64,
}

/// Result of all flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NumberedReport {
    /// Number of flows.
    pub flows: u32,
    /// Flows with datagrams sent but none received.
    pub silent_flows: u32,
    /// From the sender to the receiver.
    pub forward: Tally,
    /// From the receiver back.
    pub replies: Tally,
}

/// Running flows.
#[derive(Debug)]
pub struct Numbered {
    shared: Arc<Shared>,
    sender: JoinHandle<Vec<u64>>,
    receiver: JoinHandle<ReceiverEnd>,
    reply_receiver: JoinHandle<Vec<FlowCheck>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    end: AtomicBool,
    sent: AtomicU64,
    refused: AtomicU64,
    received: AtomicU64,
    replies_sent: AtomicU64,
    replies_received: AtomicU64,
    corrupt: AtomicU64,
    replies_corrupt: AtomicU64,
    replies_refused: AtomicU64,
    last_arrival: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct ReceiverEnd {
    checks: Vec<FlowCheck>,
    replies_sent: Vec<u64>,
}

impl Numbered {
    /// Starts flows from `source` in one namespace to `destination` in another one.
    ///
    /// Flows share sockets on both sides (every pair of a source and a destination port is a flow), so that
    /// 10,000 flows need about 200 descriptors.
    pub fn start(
        from: &Namespace,
        source: IpAddr,
        to: &Namespace,
        destination: IpAddr,
        options: NumberedOptions,
    ) -> io::Result<Self> {
        if !(MIN_DATAGRAM..=MAX_DATAGRAM).contains(&options.datagram_bytes)
            || options.flows == 0
            || options.burst == 0
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such flows"));
        }
        let (sources, destinations) = grid(options.flows);
        let destinations = Sockets::open(to, destination, destinations)?;
        let sources = Sockets::open(from, source, sources)?;
        if options.segmentation_offload {
            sources.set_segment_size(options.datagram_bytes)?;
        }
        let addresses = destinations.addresses()?;
        let reply_sockets = sources.try_clone()?;
        let shared = Arc::<Shared>::default();
        let (for_sender, for_receiver, for_replies) = (shared.clone(), shared.clone(), shared.clone());
        let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
        let receiver = spawn("udp-receive").spawn(move || receive(&destinations, &options, &for_receiver))?;
        let reply_receiver = spawn("udp-replies")
            .spawn(move || receive_replies(&reply_sockets, options.flows, &for_replies))?;
        let sender = spawn("udp-send").spawn(move || send(&sources, &addresses, &options, &for_sender))?;
        Ok(Self { shared, sender, receiver, reply_receiver })
    }

    /// Returns the numbers of datagrams sent and received so far, without replies.
    pub fn progress(&self) -> (u64, u64) {
        (self.shared.sent.load(Relaxed), self.shared.received.load(Relaxed))
    }

    /// Reports whether all datagrams have been sent.
    pub fn is_sent(&self) -> bool {
        self.sender.is_finished()
    }

    /// Stops sending at the next burst.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Waits until all datagrams are sent and no more arrive, and returns the counts.
    pub fn finish(self) -> NumberedReport {
        let sent = self.sender.join().unwrap_or_default();
        self.shared.wait_for_quiet();
        self.shared.end.store(true, Relaxed);
        let end = self.receiver.join().unwrap_or_default();
        let reply_checks = self.reply_receiver.join().unwrap_or_default();
        let silent = sent.iter().zip(&end.checks).filter(|(sent, check)| **sent > 0 && check.received() == 0);
        NumberedReport {
            flows: u32::try_from(sent.len()).unwrap_or(u32::MAX),
            silent_flows: u32::try_from(silent.count()).unwrap_or(u32::MAX),
            forward: Tally {
                refused: self.shared.refused.load(Relaxed),
                corrupt: self.shared.corrupt.load(Relaxed),
                ..tally(&sent, &end.checks)
            },
            replies: Tally {
                refused: self.shared.replies_refused.load(Relaxed),
                corrupt: self.shared.replies_corrupt.load(Relaxed),
                ..tally(&end.replies_sent, &reply_checks)
            },
        }
    }
}

fn tally(sent: &[u64], checks: &[FlowCheck]) -> Tally {
    let mut tally = Tally { sent: sent.iter().sum(), ..Tally::default() };
    for check in checks {
        tally.received += check.received();
        tally.out_of_order += check.out_of_order();
        tally.duplicates += check.duplicates();
    }
    tally.lost = tally.sent.saturating_sub(tally.received);
    tally
}

impl Shared {
    fn arrived(&self) {
        *self.last_arrival.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Reports whether everything that was sent has arrived.
    fn has_all(&self) -> bool {
        let has = |sent: &AtomicU64, received: &AtomicU64| received.load(Relaxed) >= sent.load(Relaxed);
        has(&self.sent, &self.received) && has(&self.replies_sent, &self.replies_received)
    }

    fn wait_for_quiet(&self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let last = self.last_arrival.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(start);
            let quiet = if self.has_all() { QUIET } else { LOST };
            if last.max(start).elapsed() >= quiet {
                return;
            }
            thread::sleep(TICK);
        }
    }
}

/// Sends the flows in turn and returns how many datagrams of each flow the kernel accepted.
fn send(
    sources: &Sockets,
    destinations: &[SocketAddr],
    options: &NumberedOptions,
    shared: &Shared,
) -> Vec<u64> {
    let mut sent = vec![0u64; options.flows as usize];
    let mut pace = Pace::new(options.datagrams_per_second, Instant::now());
    let mut buffer = Vec::new();
    let mut total = 0u64;
    let burst = usize::from(options.burst);
    let at_once = match options.segmentation_offload {
        true => burst.min(MAX_DATAGRAM / options.datagram_bytes).clamp(1, 64),
        false => 1,
    };
    for flow in (0..options.flows).cycle() {
        let over = match options.amount {
            Amount::Count(count) => total >= count,
            Amount::Until(end) => Instant::now() >= end,
        };
        if over || shared.stop.load(Relaxed) {
            break;
        }
        let index = flow as usize;
        let socket = sources.get(index % sources.len());
        let destination = destinations[index / sources.len()];
        let mut remaining = match options.amount {
            Amount::Count(count) => burst.min(usize::try_from(count - total).unwrap_or(burst)),
            Amount::Until(_) => burst,
        };
        while remaining > 0 {
            let count = remaining.min(at_once);
            buffer.clear();
            for offset in 0..count as u64 {
                let header = Header { kind: Kind::Forward, flow, sequence: sent[index] + offset };
                header.write_datagram(options.datagram_bytes, &mut buffer);
            }
            match socket.send_to(&buffer, destination) {
                Ok(_) => {
                    sent[index] += count as u64;
                    shared.sent.fetch_add(count as u64, Relaxed);
                }
                Err(_) => {
                    shared.refused.fetch_add(count as u64, Relaxed);
                }
            }
            total += count as u64;
            remaining -= count;
            pace.spent(count as u64);
        }
        pace.wait();
    }
    sent
}

fn receive(sockets: &Sockets, options: &NumberedOptions, shared: &Shared) -> ReceiverEnd {
    let flows = options.flows as usize;
    let mut checks = vec![FlowCheck::default(); flows];
    let mut replies_sent = vec![0u64; flows];
    let mut last_reply = vec![None; flows];
    let mut reply = Vec::new();
    let on_datagram = |socket: &UdpSocket, from: SocketAddr, datagram: &[u8]| {
        let header = match Header::check(datagram, Kind::Forward) {
            Some(header) if header.flow < options.flows => header,
            _ => {
                shared.corrupt.fetch_add(1, Relaxed);
                return;
            }
        };
        let flow = header.flow as usize;
        checks[flow].see(header.sequence);
        shared.received.fetch_add(1, Relaxed);
        let due = match options.replies {
            Replies::Never => false,
            Replies::EveryPackets(every) => checks[flow].received().is_multiple_of(every.max(1)),
            Replies::From(first) => checks[flow].received() >= first,
            Replies::Every(interval) => {
                let now = Instant::now();
                let due = last_reply[flow].is_some_and(|last| now - last >= interval);
                if due || last_reply[flow].is_none() {
                    last_reply[flow] = Some(now);
                }
                due
            }
        };
        if due {
            reply.clear();
            let header = Header { kind: Kind::Reply, flow: header.flow, sequence: replies_sent[flow] };
            header.write_datagram(MIN_DATAGRAM, &mut reply);
            match socket.send_to(&reply, from) {
                Ok(_) => {
                    replies_sent[flow] += 1;
                    shared.replies_sent.fetch_add(1, Relaxed);
                }
                Err(_) => {
                    shared.replies_refused.fetch_add(1, Relaxed);
                }
            }
        }
    };
    drain(sockets, shared, on_datagram);
    ReceiverEnd { checks, replies_sent }
}

fn receive_replies(sockets: &Sockets, flows: u32, shared: &Shared) -> Vec<FlowCheck> {
    let mut checks = vec![FlowCheck::default(); flows as usize];
    drain(sockets, shared, |_, _, datagram| match Header::check(datagram, Kind::Reply) {
        Some(header) if header.flow < flows => {
            checks[header.flow as usize].see(header.sequence);
            shared.replies_received.fetch_add(1, Relaxed);
        }
        _ => {
            shared.replies_corrupt.fetch_add(1, Relaxed);
        }
    });
    checks
}

/// Passes datagrams from all sockets to `on_datagram` until `shared.end` is set.
fn drain(sockets: &Sockets, shared: &Shared, mut on_datagram: impl FnMut(&UdpSocket, SocketAddr, &[u8])) {
    let mut buffer = vec![0; MAX_DATAGRAM + 1];
    while !shared.end.load(Relaxed) {
        let mut any = false;
        sockets.for_each_readable(TICK, |socket| {
            while let Ok((len, from)) = sockets::receive(socket, &mut buffer) {
                on_datagram(socket, from, &buffer[..len]);
                any = true;
            }
        });
        if any {
            shared.arrived();
        }
    }
}

#[cfg(test)]
mod tests;
