//! What the event loops report of themselves.

use std::net::SocketAddr;
use std::time::Instant;

use weft_tun::TunStatsSnapshot;
use weft_tunnel::{DropCounters, DropReason, HandshakeLoad, PeerSnapshot, TunnelStats};
use weft_udp::{SendError, UdpFeatures, UdpStats};

use crate::Times;

/// Every counter and peer. With many peers the event loop needs several turns to visit all of them; the
/// counters are read in the last of these turns.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub udp: UdpStats,
    /// Offloads and buffer sizes of the sockets.
    pub udp_features: UdpFeatures,
    pub tunnel: TunnelStats,
    /// Packets dropped on the packet thread, and reads and writes that failed on the threads of the TUN, by
    /// reason.
    pub drops: DropCounters,
    pub peers: Vec<PeerSnapshot>,
    /// The TUN's counters, summed over all queues.
    pub tun: TunStatsSnapshot,
    /// The TUN's counters by queue.
    pub tun_queues: Vec<TunStatsSnapshot>,
    pub queues: QueueDepths,
    /// Durations of turns of the event loop and of their stages.
    pub times: Times,
    pub send_failure: Option<SendFailure>,
    /// The load of handshakes on the tunnel.
    pub handshakes: HandshakeLoad,
    /// What each packet thread did, in order.
    pub packet_threads: Vec<PacketThread>,
    /// Peers that moved between packet threads so far.
    pub moves: u64,
}

/// What one packet thread did since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketThread {
    /// Peers that it serves.
    pub peers: usize,
    /// How long it had work, in nanoseconds: its turns, and the time between a turn that left work and the
    /// next one.
    pub busy_ns: u64,
    /// Inner packets sealed; a super-packet counts once per segment.
    pub sealed: u64,
    /// Inner packets opened and returned to the caller.
    pub opened: u64,
    /// Bytes that it read from its queues of the TUN for peers of other packet threads.
    pub handed_over_bytes: u64,
}

impl Snapshot {
    /// Returns the snapshot of an interface from those of its packet threads, in order; `None` if there are
    /// none.
    pub fn of_all(each: Vec<Self>) -> Option<Self> {
        each.into_iter().reduce(|mut all, mut more| {
            all.peers.append(&mut more.peers);
            all.tun_queues.append(&mut more.tun_queues);
            all.packet_threads.append(&mut more.packet_threads);
            add_udp(&mut all.udp, &more.udp);
            add_tunnel(&mut all.tunnel, &more.tunnel);
            more.drops.iter().for_each(|(reason, packets)| all.drops.add(reason, packets));
            all.tun = [all.tun, more.tun].into_iter().sum();
            all.times.add(&more.times);
            let QueueDepths { control, transmit, read_ahead_bytes } = more.queues;
            all.queues.control += control;
            all.queues.transmit += transmit;
            all.queues.read_ahead_bytes += read_ahead_bytes;
            all.send_failure =
                [all.send_failure, more.send_failure].into_iter().flatten().max_by_key(|failure| failure.at);
            let HandshakeLoad { since, unread_at, work, initiations_waiting } = more.handshakes;
            let handshakes = &mut all.handshakes;
            handshakes.since = [handshakes.since, since].into_iter().flatten().min();
            handshakes.unread_at = handshakes.unread_at.max(unread_at);
            handshakes.work += work;
            handshakes.initiations_waiting += initiations_waiting;
            all
        })
    }
}

fn add_udp(all: &mut UdpStats, more: &UdpStats) {
    let UdpStats {
        datagrams_sent,
        bytes_sent,
        batches_sent,
        batch_segments,
        gso_fallbacks,
        receive_overflows,
        junk_dropped,
        datagrams_received,
        bytes_received,
        recv_calls,
    } = more;
    all.datagrams_sent += datagrams_sent;
    all.bytes_sent += bytes_sent;
    all.batches_sent += batches_sent;
    all.batch_segments.iter_mut().zip(batch_segments).for_each(|(all, more)| *all += more);
    all.gso_fallbacks += gso_fallbacks;
    all.receive_overflows += receive_overflows;
    all.junk_dropped += junk_dropped;
    all.datagrams_received += datagrams_received;
    all.bytes_received += bytes_received;
    all.recv_calls += recv_calls;
}

fn add_tunnel(all: &mut TunnelStats, more: &TunnelStats) {
    let TunnelStats {
        sealed,
        opened,
        keepalives_received,
        handshakes,
        handshakes_timed_out,
        initiations_sent,
        responses_sent,
        cookies_sent,
        icmp_sent,
        icmp_suppressed,
        staging_budget_bytes,
        staged_bytes,
        staged_segments,
    } = more;
    all.sealed += sealed;
    all.opened += opened;
    all.keepalives_received += keepalives_received;
    all.handshakes += handshakes;
    all.handshakes_timed_out += handshakes_timed_out;
    all.initiations_sent += initiations_sent;
    all.responses_sent += responses_sent;
    all.cookies_sent += cookies_sent;
    all.icmp_sent += icmp_sent;
    all.icmp_suppressed += icmp_suppressed;
    all.staging_budget_bytes += staging_budget_bytes;
    all.staged_bytes += staged_bytes;
    all.staged_segments += staged_segments;
}

/// A datagram that could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFailure {
    pub destination: SocketAddr,
    /// The reason that it was counted under.
    pub reason: DropReason,
    /// The operating system's error number. `None` for a datagram that is too long, or an error without a
    /// number.
    pub os_error: Option<i32>,
    pub at: Instant,
}

impl SendFailure {
    pub(crate) fn new(destination: SocketAddr, error: &SendError, at: Instant) -> Self {
        let os_error = match error {
            SendError::TooLong => None,
            SendError::Failed(error) => error.raw_os_error(),
        };
        Self { destination, reason: error.drop_reason(), os_error, at }
    }
}

/// Items waiting on the packet thread at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepths {
    /// Handshake messages and keepalives waiting for the socket.
    pub control: usize,
    /// Encrypted batches waiting for the socket.
    pub transmit: usize,
    /// Bytes that were read from the TUN and are not encrypted yet.
    pub read_ahead_bytes: usize,
}
