//! Numbered UDP flows: each datagram says which one of which flow it is and has content that follows from that,
//! so that every loss, displacement, repetition and corruption is noticed and counted.
//!
//! One thread sends all flows in turn at an even pace, one receives them and replies, one receives the replies.

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

/// What was sent is over when nothing has arrived for so long.
const QUIET: Duration = Duration::from_millis(300);
/// The longest wait for what is still on its way.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a receiver sleeps at most before it looks whether it should end.
const TICK: Duration = Duration::from_millis(50);

/// When the receiver of a flow answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Never: one-way flows.
    Never,
    /// After every so many datagrams of the flow.
    EveryPackets(u64),
    /// When a datagram arrives and the last reply, or the flow's first datagram, is so long ago.
    Every(Duration),
    /// For the first time after so many datagrams of the flow, and to every datagram from then on.
    From(u64),
}

/// What to send, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct NumberedOptions {
    /// Flows, each with source and destination ports of its own.
    pub flows: u32,
    /// Bytes of UDP payload a datagram, between [`MIN_DATAGRAM`] and 64 KiB less headers.
    pub datagram_bytes: usize,
    /// Datagrams a second over all flows together.
    pub datagrams_per_second: u32,
    /// Datagrams of one flow that are sent back to back before the next flow has its turn.
    pub burst: u16,
    /// Give each burst to the kernel as one super-packet (UDP_SEGMENT).
    pub segmentation_offload: bool,
    /// How many datagrams over all flows, or until when.
    pub amount: Amount,
    /// When to answer.
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

/// What became of the datagrams of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Datagrams that the kernel took for sending.
    pub sent: u64,
    /// Datagrams that the kernel refused to send.
    pub refused: u64,
    /// Different datagrams that arrived.
    pub received: u64,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived behind a later one of their flow.
    pub out_of_order: u64,
    /// Datagrams that arrived again.
    pub duplicates: u64,
    /// Datagrams whose content was not what their number says, or that belong to no flow.
    pub corrupt: u64,
}

/// What became of all flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NumberedReport {
    /// Flows that were sent.
    pub flows: u32,
    /// Flows of which nothing arrived although something was sent.
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
    /// Starts flows from `source` in one namespace to `destination` in another.
    ///
    /// Flows share sockets on both sides (every pair of a source and a destination port is a flow), so that
    /// 10,000 of them need about 200 descriptors.
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

    /// Datagrams sent and received so far, without replies.
    pub fn progress(&self) -> (u64, u64) {
        (self.shared.sent.load(Relaxed), self.shared.received.load(Relaxed))
    }

    /// Whether everything was sent.
    pub fn is_sent(&self) -> bool {
        self.sender.is_finished()
    }

    /// Ends the sending at the next burst.
    pub fn stop(&self) {
        self.shared.stop.store(true, Relaxed);
    }

    /// Waits until everything is sent and nothing more arrives, and gives the tally.
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

    fn wait_for_quiet(&self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let last = self.last_arrival.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(start);
            if last.max(start).elapsed() >= QUIET {
                return;
            }
            thread::sleep(TICK);
        }
    }
}

/// Sends every flow in turn and gives how many datagrams of each flow the kernel took.
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
        let mut left = match options.amount {
            Amount::Count(count) => burst.min(usize::try_from(count - total).unwrap_or(burst)),
            Amount::Until(_) => burst,
        };
        while left > 0 {
            let count = left.min(at_once);
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
            left -= count;
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
                Ok(_) => replies_sent[flow] += 1,
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

/// Hands on what arrives at any of the sockets until it is told to end.
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
