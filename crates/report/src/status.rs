//! The report that `weft status --json` prints: every field with its unit.
//!
//! A reader sets missing fields to their default and ignores unknown fields, so that a command and a daemon
//! of different releases understand each other.

use serde::{Deserialize, Serialize};
use weft_config::settings::ReportSettings;

use crate::finding::Finding;
use crate::format::total;
use crate::peer_name::{PeerNameError, find_peer};

/// The state of an interface at one moment. Counters start at 0 when the interface comes up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    pub interface: String,
    /// The version of the daemon.
    pub weft_version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// The absolute path of the file that the interface was brought up from; none if it has no file.
    pub file: Option<String>,
    /// A number in hexadecimal that changes with the text of the file that was loaded last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_hash: Option<String>,
    /// What computes ChaCha20-Poly1305: `avx512ifma`, `aws-lc` or `portable`.
    pub cipher: String,
    /// The process ids of the commands that use an interface without root (`weft exec`, `weft proxy`), the
    /// oldest first.
    pub members: Vec<u32>,
    /// The public key of the interface, in base64. Without a key the interface does nothing.
    pub public_key: Option<String>,
    /// The UDP port in use.
    pub listen_port: u16,
    /// The mark of sent datagrams (SO_MARK); 0: none.
    pub fw_mark: u32,
    /// The maximum size of an inner packet, in bytes.
    pub mtu: u16,
    /// Milliseconds since the interface came up.
    pub uptime_ms: u64,
    /// The wall clock of the daemon, in milliseconds since 1970.
    pub unix_time_ms: u64,
    /// Milliseconds by which the wall clock was set since the interface came up; negative if it was set back.
    pub clock_shift_ms: i64,
    /// The addresses of the TUN device.
    pub addresses: Vec<String>,
    /// The routes in force, and the policy rules, if there are any.
    pub routes: Vec<String>,
    /// The name servers and search domains in force, and how they were set.
    pub dns: Vec<String>,
    /// The firewall rules in force: the kill switch, and the protection of a full tunnel.
    pub firewall: Vec<String>,
    pub tun: TunReport,
    pub udp: UdpReport,
    pub tunnel: TunnelReport,
    /// Packets and messages that wait inside weft.
    pub queues: QueueReport,
    /// Dropped packets by reason. Reasons that never occurred are left out.
    pub drops: Vec<DropReport>,
    /// The last datagram that the kernel refused to send.
    pub send_failure: Option<SendFailureReport>,
    pub peers: Vec<PeerReport>,
    /// The peers in the configuration file that have ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expired_peers: Vec<ExpiredPeerReport>,
    /// The TCP connections of a stack of this process, those with the most bytes first, at most 256.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<ConnectionReport>,
    /// Further connections.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_connections: u64,
    /// The packet threads, in order.
    pub packet_threads: Vec<PacketThreadReport>,
    /// How often a peer moved to a packet thread that had less to do.
    pub peer_moves: u64,
    /// What each thread of the daemon may do, the oldest thread first. Empty where that is not restricted.
    pub threads: Vec<ThreadReport>,
    /// How long the packet threads take.
    pub times: TimesReport,
    /// Changes since an earlier report, if two reports could be compared.
    pub recent: Option<Recent>,
    /// Warnings and problems.
    pub findings: Vec<Finding>,
}

/// What a thread may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadReport {
    /// The name of the thread.
    pub name: String,
    /// Its capabilities, such as `CAP_NET_ADMIN` (capabilities(7)).
    pub capabilities: Vec<String>,
    /// Whether a filter restricts its system calls (seccomp(2)).
    pub is_filtered: bool,
}

/// The TUN device. Reads are outbound, writes inbound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunReport {
    /// What the device is: `tun`; in its place `veth`, a veth pair and a packet socket, or `own`, a TCP/IP
    /// stack of this process.
    pub backing: String,
    /// The number of queues with a reader and a writer thread each; 0: the packet thread reads and writes.
    pub threads: usize,
    /// Whether TCP passes as super-packets (TSO).
    pub tcp_offload: bool,
    /// Whether UDP passes as super-packets (USO).
    pub udp_offload: bool,
    /// Packets read; a super-packet counts once.
    pub packets_read: u64,
    /// Packets read as the wire would see them: a super-packet counts its segments.
    pub segments_read: u64,
    pub bytes_read: u64,
    /// Read system calls, including those that found nothing.
    pub read_calls: u64,
    /// Batches handed to the packet thread.
    pub batches_read: u64,
    /// Packets written, a system call each; a super-packet counts once.
    pub packets_written: u64,
    /// Packets written as they came from the peers: a super-packet counts its segments.
    pub segments_written: u64,
    pub bytes_written: u64,
    /// Packets that the kernel dropped since the device was created, because weft did not read them in time;
    /// a super-packet counts once.
    pub queue_overflows: u64,
    /// Packets written that the kernel did not deliver, of which only a veth pair has any. Those of which it
    /// tells by an error are in the drops too, as `tun_write_failed`.
    pub write_drops: u64,
    /// The counters of each queue, ordered by queue number.
    pub queues: Vec<TunQueueReport>,
}

/// A queue of the TUN device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunQueueReport {
    /// Packets read; a super-packet counts once.
    pub packets_read: u64,
    /// Packets read as the wire would see them: a super-packet counts its segments.
    pub segments_read: u64,
    pub bytes_read: u64,
    /// Packets written, a system call each; a super-packet counts once.
    pub packets_written: u64,
    /// Packets written as they came from the peers: a super-packet counts its segments.
    pub segments_written: u64,
    pub bytes_written: u64,
    /// The rates at which the queue is read (sent to peers) and written (received from peers), if two reports
    /// could be compared.
    pub rates: Option<Rates>,
}

/// The UDP sockets. Bytes are those of the UDP payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UdpReport {
    /// Whether one system call sends many datagrams (UDP GSO).
    pub gso: bool,
    /// Whether the kernel joins received datagrams (UDP GRO).
    pub gro: bool,
    /// Bytes of the smallest receive buffer, without the kernel's own bookkeeping; 0: unknown.
    pub receive_buffer_bytes: u64,
    /// Bytes of the smallest send buffer; 0: unknown.
    pub send_buffer_bytes: u64,
    /// Bytes of the receive buffer that weft requested; 0: unknown.
    pub wanted_receive_buffer_bytes: u64,
    /// Bytes of the send buffer that weft requested; 0: unknown.
    pub wanted_send_buffer_bytes: u64,
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// Bytes of the datagrams sent.
    pub bytes_sent: u64,
    /// System calls that sent at least one datagram.
    pub batches_sent: u64,
    /// Histogram of the messages passed to the kernel, by the number of datagrams in each. The upper limits
    /// of the buckets are 1, 2, 4, 8, 16, 32 and 64 datagrams.
    pub batch_segments: [u64; 7],
    /// Batches sent as single datagrams, because the kernel or the path does not accept them as a batch.
    pub gso_fallbacks: u64,
    /// Received datagrams that the kernel dropped, because weft did not read them in time.
    pub receive_overflows: u64,
    /// Datagrams that the kernel dropped because they cannot be messages for this interface.
    pub junk_dropped: u64,
    pub datagrams_received: u64,
    /// Bytes of the datagrams received.
    pub bytes_received: u64,
    /// System calls that received at least one datagram.
    pub recv_calls: u64,
    /// Whether the kernel chooses the packet thread of each datagram; true with one packet thread.
    pub steered: bool,
}

/// A packet thread, with the peers that it serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PacketThreadReport {
    /// The number of peers that it serves.
    pub peers: usize,
    /// Nanoseconds in which it had work, since the interface came up: its turns, and the time that work
    /// waited for the processor between them.
    pub busy_ns: u64,
    /// Inner packets that it sealed (outbound).
    pub sealed: u64,
    /// Inner packets that it opened (inbound).
    pub opened: u64,
    /// Bytes that it read from the TUN for peers of other packet threads.
    pub handed_over_bytes: u64,
    /// The share of the time in which it had work, from 0 to 1, if two reports could be compared.
    pub busy: Option<f64>,
}

/// Counters of the WireGuard state machine, in packets as the wire sees them: a super-packet counts its
/// segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelReport {
    /// Packets encrypted.
    pub sealed: u64,
    /// Packets decrypted and accepted.
    pub opened: u64,
    /// Handshakes completed.
    pub handshakes: u64,
    /// Handshake attempts abandoned after 90 s without completion. A new packet to send restarts the 90 s.
    pub handshakes_timed_out: u64,
    /// Handshake initiations sent.
    pub initiations_sent: u64,
    /// Handshake responses sent.
    pub responses_sent: u64,
    pub keepalives_received: u64,
    /// Cookie replies sent, because of a high handshake load.
    pub cookies_sent: u64,
    /// Milliseconds since handshakes began to exceed the time for them; `None` if there is time for all.
    pub handshake_load_ms: Option<u64>,
    /// Handshake work, as nominal milliseconds of the packet thread: each operation counts with a fixed cost.
    pub handshake_work_ms: u64,
    /// Handshake initiations that are due, but wait for time.
    pub initiations_waiting: usize,
    /// ICMP errors sent to the senders of packets that were refused.
    pub icmp_sent: u64,
    /// ICMP errors that were due but not sent, because there were too many.
    pub icmp_suppressed: u64,
}

/// Packets and messages that wait inside weft now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueReport {
    /// Bytes of packets that wait for a session, over all peers.
    pub staged_bytes: u64,
    /// Packets that wait for a session; a super-packet counts its segments.
    pub staged_packets: u64,
    /// Maximum bytes that may wait for a session, over all peers.
    pub staging_budget_bytes: u64,
    /// Handshake messages and keepalives that wait for the socket.
    pub control_waiting: usize,
    /// Encrypted batches that wait for the socket.
    pub transmit_waiting: usize,
    /// Bytes read from the TUN and not encrypted yet.
    pub read_ahead_bytes: usize,
}

/// How long the packet threads take for their turns and their stages, all threads together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimesReport {
    /// All turns of the event loop. An event waits no longer than one turn before it is handled.
    pub turns: HistogramReport,
    /// The stages of sampled turns: one turn in 64, or one per second if there are fewer. A time is that of
    /// one batch.
    pub stages: Vec<StageReport>,
}

/// How long a stage takes for one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReport {
    /// `outbound`, `inbound` or `both`.
    pub direction: String,
    /// The stage of that direction: `read`, `encrypt`, `send`, `receive`, `decrypt`, `write`, `handshakes`,
    /// `commands`.
    pub stage: String,
    pub times: HistogramReport,
}

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistogramReport {
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations, in nanoseconds.
    pub sum_ns: u64,
    /// The buckets that are not empty: the upper bound in nanoseconds (`None`: longer than the last bound,
    /// 1.05 s), and the number of durations.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// A datagram that the kernel refused to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendFailureReport {
    /// The destination, as address and port.
    pub endpoint: String,
    /// The error of the kernel.
    pub error: String,
    /// Milliseconds since the failure.
    pub age_ms: u64,
}

/// A TCP connection of a stack of this process: what TCP_INFO (tcp(7)) has, as far as that stack has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionReport {
    /// The end in the process, as address and port.
    pub local: String,
    /// The other end.
    pub remote: String,
    /// The state, as ss(8) names it.
    pub state: String,
    /// The smoothed round trip time and its deviation, in microseconds; 0 before the first sample.
    pub rtt_us: u64,
    pub rtt_var_us: u64,
    /// The least round trip time, in microseconds.
    pub min_rtt_us: u64,
    /// The retransmission timeout, in microseconds.
    pub rto_us: u64,
    /// Payload bytes of a full segment.
    pub mss: u16,
    /// Bytes of the congestion window.
    pub cwnd_bytes: u64,
    /// The slow start threshold in bytes; none before the first loss.
    pub ssthresh_bytes: Option<u64>,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes that are not acknowledged, those that wait to be sent included.
    pub send_queue_bytes: u64,
    /// Bytes that arrived and were not read.
    pub receive_queue_bytes: u64,
    /// Bytes that the other end may send, and that it takes.
    pub receive_window_bytes: u64,
    pub send_window_bytes: u64,
    /// Payload bytes that were acknowledged, that arrived in order, and that were sent again.
    pub acked_bytes: u64,
    pub received_bytes: u64,
    pub retransmitted_bytes: u64,
    /// Expirations of the retransmission timer; losses that were repaired without; losses that were none.
    pub timeouts: u64,
    pub recoveries: u64,
    pub undone: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DropReport {
    /// The reason, named as in metrics and logs.
    pub reason: String,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// The stage of that direction: `tun`, `routing`, `session`, `handshake`, `decryption`, `udp`.
    pub stage: String,
    /// Packets as the wire would see them: a super-packet counts its segments.
    pub packets: u64,
}

/// The state of a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReport {
    /// The public key of the peer, in base64.
    pub public_key: String,
    /// What the configuration file says for reports, such as the name.
    #[serde(flatten)]
    pub settings: ReportSettings,
    /// Whether the peer has a preshared key.
    pub has_preshared_key: bool,
    /// The endpoint of the peer, as address and port, if it is known.
    pub endpoint: Option<String>,
    /// Whether the configuration has an endpoint. Otherwise the endpoint is only learnt from received
    /// datagrams.
    pub has_configured_endpoint: bool,
    /// Milliseconds since the last completed handshake.
    pub latest_handshake_ms: Option<u64>,
    /// Whether a handshake is being attempted and has not completed yet.
    pub is_trying: bool,
    /// UDP payload bytes sent to the peer, including handshakes.
    pub tx_bytes: u64,
    /// UDP payload bytes received from the peer and authenticated, including handshakes.
    pub rx_bytes: u64,
    /// Data messages that the peer sent, by the counters of those that arrived.
    pub rx_expected_messages: u64,
    /// Data messages received from the peer and authenticated. The difference to those expected was lost, or
    /// is late.
    pub rx_messages: u64,
    /// Data messages that arrived after a later one of the same session.
    pub rx_displaced_messages: u64,
    /// Bytes of packets that wait for a session.
    pub staged_bytes: u64,
    /// The interval of persistent keepalives, in seconds; `None`: off.
    pub persistent_keepalive: Option<u16>,
    /// The allowed-ips of the peer.
    pub allowed_ips: Vec<String>,
    /// The rate limit of packets to the peer, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_to_peer: Option<LimitReport>,
    /// The rate limit of packets from the peer, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_from_peer: Option<LimitReport>,
    /// The number of the packet thread that serves the peer; `None` if it is not known.
    pub packet_thread: Option<usize>,
    /// The rates to and from the peer, if two reports could be compared.
    pub rates: Option<Rates>,
    /// What ICMP says of the endpoint, while the peer does not answer. It may be forged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalReport>,
    /// How the endpoint goes back and forth, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternation: Option<AlternationReport>,
}

/// A peer that has ended, by `# weft: Expires`, and is not let in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpiredPeerReport {
    /// The public key of the peer, in base64.
    pub public_key: String,
    /// What the configuration file says for reports: the name, and when the peer ended.
    #[serde(flatten)]
    pub settings: ReportSettings,
}

/// What ICMP says of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusalReport {
    /// The endpoint, as address and port.
    pub endpoint: String,
    /// What it says, as a part of a sentence.
    pub says: String,
    /// Milliseconds since then.
    pub age_ms: u64,
}

/// How an endpoint goes back and forth between the same addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlternationReport {
    /// The endpoints, as address and port, the oldest first.
    pub endpoints: Vec<String>,
    /// How often the peer came back to one of them.
    pub returns: u32,
    /// Milliseconds since the first return.
    pub first_ms: u64,
    /// Milliseconds since the last return.
    pub latest_ms: u64,
}

/// The rate limit of a peer in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitReport {
    /// The maximum rate of inner IP packets, in bits per second.
    pub bits_per_second: u64,
    /// Packets dropped by the limit; a super-packet counts its segments.
    pub dropped_packets: u64,
}

/// Rates in bytes per second: of UDP payloads, or of IP packets for a queue of the TUN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    pub tx_bytes_per_second: u64,
    pub rx_bytes_per_second: u64,
}

/// Changes between two reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recent {
    /// Milliseconds between the two reports.
    pub window_ms: u64,
    /// The share of this time in which the busiest packet thread had work, from 0 to 1.
    pub busy: f64,
    /// The rates of the whole interface.
    pub rates: Rates,
    /// Packets dropped in this time, by reason.
    pub drops: Vec<DropReport>,
    /// The increase of [`TunReport::queue_overflows`].
    pub queue_overflows: u64,
    /// The increase of [`UdpReport::receive_overflows`].
    pub receive_overflows: u64,
    /// The increase of each bucket of [`UdpReport::batch_segments`].
    pub batch_segments: [u64; 7],
}

impl PeerReport {
    /// Returns the friendly name, or else the beginning of the public key.
    pub fn label(&self) -> String {
        self.settings.friendly_name.clone().unwrap_or_else(|| crate::format::short_key(&self.public_key))
    }
}

impl StatusReport {
    /// Returns the peer that a user names, `Err` inside if it has ended.
    ///
    /// # Errors
    /// No peer has the key or the name, or several have it.
    pub fn peer_or_expired(
        &self,
        wanted: &str,
    ) -> Result<Result<&PeerReport, &ExpiredPeerReport>, PeerNameError> {
        let is_there = |key: &str| self.peers.iter().any(|peer| peer.public_key == key);
        let expired: Vec<_> = self.expired_peers.iter().filter(|peer| !is_there(&peer.public_key)).collect();
        let peers = self.peers.iter().map(|peer| (&peer.public_key, &peer.settings));
        let peers = peers.chain(expired.iter().map(|peer| (&peer.public_key, &peer.settings)));
        let named: Vec<_> =
            peers.map(|(key, settings)| (key.clone(), settings.friendly_name.as_deref())).collect();
        let place = find_peer(&self.interface, wanted, &named, "weft status")?;
        Ok(self.peers.get(place).ok_or_else(|| expired[place - self.peers.len()]))
    }

    /// Returns the peer that a user names.
    ///
    /// # Errors
    /// No peer has the key or the name, or several have it, or it has ended.
    pub fn peer(&self, wanted: &str) -> Result<&PeerReport, PeerNameError> {
        self.peer_or_expired(wanted)?.map_err(|_| PeerNameError::Ended {
            interface: self.interface.clone(),
            wanted: wanted.to_owned(),
        })
    }

    /// Returns when the interface came up, in milliseconds since 1970, by the wall clock at that time. The
    /// value is the same in every report, to the millisecond, even if the clock was set since:
    /// [`Self::clock_shift_ms`] corrects for that.
    pub fn start_unix_ms(&self) -> u64 {
        let now = i128::from(self.unix_time_ms);
        let start = now - i128::from(self.uptime_ms) - i128::from(self.clock_shift_ms);
        u64::try_from(start).unwrap_or(0)
    }

    /// Returns the packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        total(self.drops.iter().map(|drop| drop.packets))
    }

    /// Returns the packets dropped for this reason.
    pub fn dropped_for(&self, reason: weft_tunnel::DropReason) -> u64 {
        packets_of(&self.drops, reason)
    }

    /// Returns the packets dropped for this reason since the earlier report; 0 if there is none.
    pub fn recently_dropped_for(&self, reason: weft_tunnel::DropReason) -> u64 {
        self.recent.as_ref().map_or(0, |recent| packets_of(&recent.drops, reason))
    }
}

fn packets_of(drops: &[DropReport], reason: weft_tunnel::DropReason) -> u64 {
    total(drops.iter().filter(|drop| drop.reason == reason.label()).map(|drop| drop.packets))
}
