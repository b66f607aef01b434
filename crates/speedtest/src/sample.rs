//! What one end observes at one moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_report::{PeerReport, StatusReport};

use crate::{MAX_SECONDS, SAMPLE_EVERY};

/// The most samples of the responder: those of the longest test, and some more.
pub(crate) const MAX_SAMPLES: usize = 2 * MAX_SECONDS as usize * 10;

/// What one end observes at one moment of a test. Counters grow; only differences have a meaning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Microseconds since this end began.
    pub at_us: u64,
    /// Bytes that the test has received at this end.
    pub received: u64,
    /// The sockets, all connections together; only of the sender.
    pub tcp: Option<Tcp>,
    /// The datagrams of a test with UDP.
    pub datagrams: Option<Datagrams>,
    /// What TCP of the sender's kernel went through, all connections of the machine together; only of the
    /// sender.
    pub events: Option<TcpEvents>,
    /// The processors.
    pub cpu: CpuTimes,
    /// The counters of the daemon, which may be a little older than the sample.
    pub counters: Option<Counters>,
}

/// What one end has sent of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) datagrams: u64,
}

impl Sample {
    /// Bounds what was received by what was sent: the other end may tell any numbers, and number its
    /// datagrams as it likes.
    pub(crate) fn bound(&mut self, most: Sent) {
        self.received = self.received.min(most.bytes);
        if let Some(Datagrams { sent, expected, received, displaced }) = &mut self.datagrams {
            for count in [sent, expected, received, displaced] {
                *count = (*count).min(most.datagrams);
            }
        }
    }

    /// Adds a sample of the other end to `told`, bounded by what was sent. Its time is one of `whole`, and
    /// later than that of the one before, as rates are differences. Returns false if there are too many.
    pub(crate) fn keep(mut self, told: &mut Vec<Self>, most: Sent, whole: Duration) -> bool {
        self.bound(most);
        let next = told.last().map_or(0, |last| last.at_us.saturating_add(micros(SAMPLE_EVERY / 2)));
        self.at_us = self.at_us.max(next).min(micros(whole));
        let has_room = told.len() < MAX_SAMPLES;
        if has_room {
            told.push(self);
        }
        has_room
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// TCP_INFO of the connections, as the kernel has it (tcp(7), `linux/tcp.h`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tcp {
    /// The congestion windows, in bytes.
    pub cwnd_bytes: u64,
    /// The receivers' windows, in bytes; 0: the kernel does not tell (before 5.4).
    pub receive_window_bytes: u64,
    /// Bytes in flight.
    pub unacked_bytes: u64,
    /// The smoothed round trip, in microseconds: the mean of the connections.
    pub rtt_us: u64,
    /// The least round trip, in microseconds.
    pub min_rtt_us: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Acknowledgements that showed segments to have arrived in another order.
    pub reordered: u64,
    /// The rate at which data is delivered, in bytes per second.
    pub delivery_rate: u64,
    /// Microseconds with data to send, the mean of the connections as the next two.
    pub busy_us: u64,
    /// Microseconds in which the receiver's window was full.
    pub rwnd_limited_us: u64,
    /// Microseconds in which the send buffer was full although more could have been sent.
    pub sndbuf_limited_us: u64,
    /// Connections in slow start.
    pub in_slow_start: u32,
    /// All connections.
    pub streams: u32,
}

/// The datagrams of a test with UDP, by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Datagrams {
    /// Datagrams sent by this end.
    pub sent: u64,
    /// The number after the highest one received.
    pub expected: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams received after one with a higher number.
    pub displaced: u64,
}

/// What the kernel's TCP counts (`nstat -az`), of all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpEvents {
    /// Slow starts that HyStart (of CUBIC) ended before a loss.
    pub hystart_exits: u64,
    /// Recoveries from losses that SACK showed.
    pub sack_recoveries: u64,
    /// Probes for the loss of the last segments (RFC 8985, section 7).
    pub tail_probes: u64,
    /// Segments sent again although they had arrived, by DSACK (RFC 2883).
    pub spurious_retransmits: u64,
}

/// Processor time, in microseconds, of the processors that the daemon may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuTimes {
    /// These processors, while they work.
    pub machine_busy_us: u64,
    /// These processors.
    pub machine_us: u64,
    /// The daemon and the test.
    pub own_us: u64,
    /// The thread of the test.
    pub thread_us: u64,
}

/// Counters of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Microseconds since this end began; 0: from before that.
    pub at_us: u64,
    /// Microseconds in which each packet thread had work.
    pub busy_us: Vec<u64>,
    /// Packets that a rate limit of the peer dropped.
    pub over_limit: u64,
    /// Packets dropped by reason, the kernel's in TUN and sockets (`tun_queue`, `socket`) included.
    pub drops: BTreeMap<String, u64>,
    /// Bytes that wait inside the daemon: read from the TUN, or without a session.
    pub waiting_bytes: u64,
    /// All datagrams sent.
    pub datagrams: u64,
    /// The system calls that sent them.
    pub batches: u64,
    /// WireGuard's data messages from the peer: those expected by their counters.
    pub expected_messages: u64,
    /// Those received.
    pub received_messages: u64,
    /// Those received after a later one.
    pub displaced_messages: u64,
}

/// The drops that happen when the daemon does not keep up.
const OVERLOAD: [&str; 3] = ["overload", "tun_stalled", "packet_thread_stalled"];
/// Those of the kernel in the queues before the daemon.
const KERNEL_QUEUES: [&str; 2] = ["tun_queue", "socket"];

/// The most packet threads and reasons in the counters of the other end: several times as many as there are.
const MAX_COUNTERS: usize = 256;
/// The most bytes of the name of a reason.
const MAX_REASON: usize = 64;

impl Counters {
    /// Whether the other end tells more than a daemon has.
    pub(crate) fn is_large(&self) -> bool {
        self.busy_us.len() > MAX_COUNTERS
            || self.drops.len() > MAX_COUNTERS
            || self.drops.keys().any(|reason| !is_text(reason, MAX_REASON))
    }

    /// Takes the counters from a report, for this peer.
    pub(crate) fn of(report: &StatusReport, peer: &str, at_us: u64) -> Self {
        let mut drops: BTreeMap<String, u64> = BTreeMap::new();
        for drop in &report.drops {
            *drops.entry(drop.reason.clone()).or_default() += drop.packets;
        }
        drops.insert("tun_queue".to_owned(), report.tun.queue_overflows);
        drops.insert("socket".to_owned(), report.udp.receive_overflows);
        drops.retain(|_, packets| *packets > 0);
        let peer = report.peers.iter().find(|other| other.public_key == peer);
        let limits = peer.iter().flat_map(|peer| [&peer.limit_to_peer, &peer.limit_from_peer]);
        Self {
            at_us,
            busy_us: report.packet_threads.iter().map(|thread| thread.busy_ns / 1000).collect(),
            over_limit: limits.flatten().map(|limit| limit.dropped_packets).sum(),
            drops,
            waiting_bytes: report.queues.staged_bytes + report.queues.read_ahead_bytes as u64,
            datagrams: report.udp.datagrams_sent,
            batches: report.udp.batches_sent,
            expected_messages: peer.map_or(0, |peer| peer.rx_expected_messages),
            received_messages: peer.map_or(0, |peer| peer.rx_messages),
            displaced_messages: peer.map_or(0, |peer| peer.rx_displaced_messages),
        }
    }

    /// Returns the packets that the daemon dropped because it did not keep up.
    pub fn overload(&self) -> u64 {
        self.dropped(&OVERLOAD)
    }

    /// Returns the packets that the kernel dropped in the queues before the daemon: of the TUN, and of the
    /// sockets.
    pub fn dropped_before(&self) -> u64 {
        self.dropped(&KERNEL_QUEUES)
    }

    fn dropped(&self, reasons: &[&str]) -> u64 {
        let drops = reasons.iter().filter_map(|reason| self.drops.get(*reason));
        // The peer may tell any numbers.
        drops.fold(0, |sum, packets| sum.saturating_add(*packets))
    }
}

/// Returns the peer that has this address: of those whose allowed-ips contain it, the one with the longest
/// prefix.
pub fn peer_of(report: &StatusReport, address: IpAddr) -> Option<&PeerReport> {
    let longest = |peer: &PeerReport| {
        let nets = peer.allowed_ips.iter().filter_map(|net| net.parse::<IpNet>().ok());
        nets.filter(|net| net.contains(&address)).map(|net| net.prefix_len()).max()
    };
    let with = report.peers.iter().filter_map(|peer| Some((longest(peer)?, peer)));
    with.max_by_key(|(prefix, _)| *prefix).map(|(_, peer)| peer)
}

/// Reports whether a string is a line of at most `most` bytes: with a line break it would be another message.
pub(crate) fn is_text(text: &str, most: usize) -> bool {
    text.len() <= most && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use weft_report::{DropReport, LimitReport, TunReport};

    use super::*;

    fn peer(key: &str, allowed_ips: &[&str]) -> PeerReport {
        let allowed_ips = allowed_ips.iter().map(|net| (*net).to_owned()).collect();
        PeerReport { public_key: key.to_owned(), allowed_ips, ..PeerReport::default() }
    }

    #[test]
    fn no_more_was_received_than_was_sent() {
        let all = |count| Datagrams { sent: count, expected: count, received: count, displaced: count };
        let mut sample = Sample { received: u64::MAX, datagrams: Some(all(u64::MAX)), ..Sample::default() };
        sample.bound(Sent { bytes: 5_000, datagrams: 5 });
        assert_eq!((sample.received, sample.datagrams), (5_000, Some(all(5))));
        let true_one = Sample { received: 4_000, datagrams: Some(all(4)), ..Sample::default() };
        let mut bound = true_one.clone();
        bound.bound(Sent { bytes: 5_000, datagrams: 5 });
        assert_eq!(bound, true_one);
    }

    #[test]
    fn the_peer_of_an_address_has_the_longest_prefix() {
        let peers = vec![peer("a", &["0.0.0.0/0"]), peer("b", &["10.0.0.0/24"]), peer("c", &["10.0.0.2/32"])];
        let report = StatusReport { peers, ..StatusReport::default() };
        let of = |address: &str| peer_of(&report, address.parse().unwrap()).map(|peer| &*peer.public_key);
        assert_eq!(of("10.0.0.2"), Some("c"));
        assert_eq!(of("10.0.0.3"), Some("b"));
        assert_eq!(of("192.0.2.1"), Some("a"));
        assert_eq!(of("fd00::1"), None);
    }

    #[test]
    fn counters_are_those_of_the_peer_and_of_all_drops() {
        let limit = |dropped_packets| Some(LimitReport { dropped_packets, ..LimitReport::default() });
        let peer = |key: &str, rx_messages| PeerReport { rx_messages, ..peer(key, &[]) };
        let drop = |packets| DropReport { reason: "overload".into(), packets, ..DropReport::default() };
        let report = StatusReport {
            peers: vec![
                peer("a", 1),
                PeerReport { limit_to_peer: limit(3), limit_from_peer: limit(4), ..peer("b", 2) },
            ],
            drops: vec![drop(5), drop(6)],
            tun: TunReport { queue_overflows: 7, ..TunReport::default() },
            ..StatusReport::default()
        };
        let counters = Counters::of(&report, "b", 9);
        assert_eq!((counters.at_us, counters.over_limit, counters.received_messages), (9, 7, 2));
        assert_eq!((counters.overload(), counters.dropped_before()), (11, 7));
        assert_eq!(counters.drops.len(), 2);
    }
}
