//! The report itself: every field with its unit, as `weft status --json` prints it.
//!
//! A reader fills fields that it does not get with their default, and leaves out those that it does not know, so that
//! a command and a daemon of different releases understand each other.

use serde::{Deserialize, Serialize};

use crate::finding::Finding;

/// Everything that is known of an interface at one moment. Counters begin at 0 when the interface comes up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// Its name.
    pub interface: String,
    /// The version of the weft that runs it.
    pub weft_version: String,
    /// The process that runs it.
    pub pid: u32,
    /// Its identity, in base64; without a key it does nothing.
    pub public_key: Option<String>,
    /// The UDP port in use.
    pub listen_port: u16,
    /// The mark of outgoing packets (SO_MARK); 0: none.
    pub fw_mark: u32,
    /// Bytes of the largest inner packet.
    pub mtu: u16,
    /// Milliseconds since it came up.
    pub uptime_ms: u64,
    /// The daemon's wall clock: milliseconds since 1970.
    pub unix_time_ms: u64,
    /// By how many milliseconds the wall clock was set since the interface came up; negative: back.
    pub clock_shift_ms: i64,
    /// The addresses of the device.
    pub addresses: Vec<String>,
    /// The routes in force, and policy rules where there are any.
    pub routes: Vec<String>,
    /// Name servers and search domains in force, and how they were set.
    pub dns: Vec<String>,
    /// Firewall rules in force: the kill switch, what protects a full tunnel.
    pub firewall: Vec<String>,
    /// The device.
    pub tun: TunReport,
    /// The sockets.
    pub udp: UdpReport,
    /// What was encrypted and decrypted.
    pub tunnel: TunnelReport,
    /// What waits inside weft.
    pub queues: QueueReport,
    /// Packets dropped, by reason; reasons that never occurred are left out.
    pub drops: Vec<DropReport>,
    /// The newest datagram that the kernel refused to send.
    pub send_failure: Option<SendFailureReport>,
    /// The peers.
    pub peers: Vec<PeerReport>,
    /// How busy the packet thread is.
    pub times: TimesReport,
    /// What happened lately, where two reports could be compared.
    pub recent: Option<Recent>,
    /// What is odd or wrong.
    pub findings: Vec<Finding>,
}

/// The TUN device. Outbound is what was read from it, inbound what was written to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunReport {
    /// Queues with a reader and a writer thread each; 0: the packet thread does it.
    pub threads: usize,
    /// Whether TCP passes as super-packets (TSO).
    pub tcp_offload: bool,
    /// Whether UDP passes as super-packets (USO).
    pub udp_offload: bool,
    /// Packets read; a super-packet counts once.
    pub packets_read: u64,
    /// Packets read as the wire would see them: a super-packet counts its segments.
    pub segments_read: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// System calls that read, those that found nothing included.
    pub read_calls: u64,
    /// Batches handed to the packet thread.
    pub batches_read: u64,
    /// Packets written, a system call each; a super-packet counts once.
    pub packets_written: u64,
    /// Packets written as they came from the peers: a super-packet counts its segments.
    pub segments_written: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Packets that the kernel threw away since the device is there, because weft did not read them in time; a
    /// super-packet counts once.
    pub queue_overflows: u64,
    /// The same queue by queue, in the order of their numbers.
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
    /// Bytes read.
    pub bytes_read: u64,
    /// Packets written, a system call each; a super-packet counts once.
    pub packets_written: u64,
    /// Packets written as they came from the peers: a super-packet counts its segments.
    pub segments_written: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// How fast it is read (sent to peers) and written (received from them), where two reports could be compared.
    pub rates: Option<Rates>,
}

/// The UDP sockets. Bytes are those of the UDP payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UdpReport {
    /// Whether one system call sends many datagrams (UDP GSO).
    pub gso: bool,
    /// Whether the kernel joins what arrives (UDP GRO).
    pub gro: bool,
    /// Bytes of the smallest receive buffer, without the kernel's own bookkeeping; 0: unknown.
    pub receive_buffer_bytes: u64,
    /// Bytes of the smallest send buffer; 0: unknown.
    pub send_buffer_bytes: u64,
    /// Bytes of a receive buffer that weft asked for; 0: unknown.
    pub wanted_receive_buffer_bytes: u64,
    /// Bytes of a send buffer that weft asked for; 0: unknown.
    pub wanted_send_buffer_bytes: u64,
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// System calls that sent at least one datagram.
    pub batches_sent: u64,
    /// Messages that the kernel got, by the datagrams in each: at most 1, 2, 4, 8, 16, 32 and 64.
    pub batch_segments: [u64; 7],
    /// Batches that had to be sent as single datagrams.
    pub gso_fallbacks: u64,
    /// Datagrams that arrived and that the kernel threw away, because weft did not take them in time.
    pub receive_overflows: u64,
    /// Datagrams that the kernel threw away because they cannot be messages for this interface.
    pub junk_dropped: u64,
    /// Datagrams that arrived.
    pub datagrams_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// System calls that received at least one datagram.
    pub recv_calls: u64,
}

/// The WireGuard state machine, in packets as the wire sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelReport {
    /// Packets encrypted.
    pub sealed: u64,
    /// Packets decrypted and handed on.
    pub opened: u64,
    /// Handshakes that came through.
    pub handshakes: u64,
    /// Times that handshakes were given up: for 90 s none came through, and there was nothing new to send.
    pub handshakes_timed_out: u64,
    /// Handshake initiations sent.
    pub initiations_sent: u64,
    /// Handshake responses sent.
    pub responses_sent: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Cookie replies sent: the interface was under a load of handshakes.
    pub cookies_sent: u64,
    /// Milliseconds since when there are more handshakes than there is time for; nothing: there is time for all.
    pub handshake_load_ms: Option<u64>,
    /// Time of the packet thread that handshakes took, counted by what they cost.
    pub handshake_work_ms: u64,
    /// Peers that a handshake initiation is due to, and waits for time.
    pub initiations_waiting: usize,
    /// ICMP errors given to senders of packets that could not go on.
    pub icmp_sent: u64,
    /// ICMP errors that were due and not given, because there were too many.
    pub icmp_suppressed: u64,
}

/// What waits at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueReport {
    /// Bytes of packets that wait for a session, all peers together.
    pub staged_bytes: u64,
    /// These packets, as the wire would see them.
    pub staged_packets: u64,
    /// Bytes that may wait for a session, all peers together.
    pub staging_budget_bytes: u64,
    /// Handshake messages and keepalives that wait for the socket.
    pub control_waiting: usize,
    /// Encrypted batches that wait for the socket.
    pub transmit_waiting: usize,
    /// Bytes that were read from the TUN and are not encrypted yet.
    pub read_ahead_bytes: usize,
}

/// How long the packet thread takes for what it does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimesReport {
    /// The turns of the event loop, all of them: what waits elsewhere waits no longer than that.
    pub turns: HistogramReport,
    /// The stages of one turn in 64, each time with a batch.
    pub stages: Vec<StageReport>,
}

/// How long a stage takes with a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReport {
    /// `outbound`, `inbound` or `both`.
    pub direction: String,
    /// The stage of that direction: `read`, `encrypt`, `send`, `receive`, `decrypt`, `write`, `handshakes`, `commands`.
    pub stage: String,
    /// How long it took.
    pub times: HistogramReport,
}

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistogramReport {
    /// How often.
    pub count: u64,
    /// Nanoseconds, all together.
    pub sum_ns: u64,
    /// The buckets that are not empty: nanoseconds at most (nothing: more than a second), and how often.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// A datagram that the kernel refused to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SendFailureReport {
    /// Where it should have gone, as address and port.
    pub endpoint: String,
    /// Why it did not.
    pub error: String,
    /// Milliseconds since then.
    pub age_ms: u64,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DropReport {
    /// The reason, as metrics and logs name it.
    pub reason: String,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// The stage of that direction: `tun`, `routing`, `session`, `handshake`, `decryption`, `udp`.
    pub stage: String,
    /// Packets as the wire would see them.
    pub packets: u64,
}

/// A peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReport {
    /// Its identity, in base64.
    pub public_key: String,
    /// What the configuration calls it (`# friendly_name = …`).
    pub friendly_name: Option<String>,
    /// Whether a preshared key is mixed into its handshakes.
    pub has_preshared_key: bool,
    /// Where it is, as address and port.
    pub endpoint: Option<String>,
    /// Whether the configuration says where it is, and not the peer alone by what it sent.
    pub has_configured_endpoint: bool,
    /// Milliseconds since the last handshake came through.
    pub latest_handshake_ms: Option<u64>,
    /// Whether a handshake is wanted, and did not come through yet.
    pub is_trying: bool,
    /// UDP payload bytes sent to it.
    pub tx_bytes: u64,
    /// UDP payload bytes received from it and authenticated.
    pub rx_bytes: u64,
    /// Bytes of packets that wait for a session.
    pub staged_bytes: u64,
    /// Seconds between keepalives that are sent whatever else is sent.
    pub persistent_keepalive: Option<u16>,
    /// Its allowed-ips.
    pub allowed_ips: Vec<String>,
    /// How fast packets may go to it, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_to_peer: Option<LimitReport>,
    /// How fast packets may come from it, if that is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_from_peer: Option<LimitReport>,
    /// How fast it sends and receives, where two reports could be compared.
    pub rates: Option<Rates>,
}

/// A limit of a peer, in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitReport {
    /// Bits of inner IP packets that may pass in a second.
    pub bits_per_second: u64,
    /// Packets that were more and so were dropped, as the wire would see them.
    pub dropped_packets: u64,
}

/// Bytes a second: of the UDP payload, or for a queue of the TUN of its IP packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Sent.
    pub tx_bytes_per_second: u64,
    /// Received.
    pub rx_bytes_per_second: u64,
}

/// What happened between two reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recent {
    /// Milliseconds between them.
    pub window_ms: u64,
    /// Of the whole interface.
    pub rates: Rates,
    /// Packets dropped meanwhile, by reason.
    pub drops: Vec<DropReport>,
    /// What the kernel threw away meanwhile, as [`TunReport::queue_overflows`].
    pub queue_overflows: u64,
    /// What the kernel threw away meanwhile, as [`UdpReport::receive_overflows`].
    pub receive_overflows: u64,
    /// Messages that the kernel got meanwhile, as [`UdpReport::batch_segments`].
    pub batch_segments: [u64; 7],
}

impl PeerReport {
    /// Its friendly name, else the beginning of its key.
    pub fn label(&self) -> String {
        self.friendly_name.clone().unwrap_or_else(|| crate::format::short_key(&self.public_key))
    }
}

impl StatusReport {
    /// When the interface came up: milliseconds since 1970, by the wall clock of then. It is the same in every report,
    /// to the millisecond, however the clock was set meanwhile: by that the two others differ from it.
    pub fn start_unix_ms(&self) -> u64 {
        let now = i128::from(self.unix_time_ms);
        let start = now - i128::from(self.uptime_ms) - i128::from(self.clock_shift_ms);
        u64::try_from(start).unwrap_or(0)
    }

    /// Packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().map(|drop| drop.packets).sum()
    }

    /// Packets dropped for this reason.
    pub fn dropped_for(&self, reason: weft_tunnel::DropReason) -> u64 {
        packets_of(&self.drops, reason)
    }

    /// Packets dropped for this reason lately.
    pub fn recently_dropped_for(&self, reason: weft_tunnel::DropReason) -> u64 {
        self.recent.as_ref().map_or(0, |recent| packets_of(&recent.drops, reason))
    }
}

fn packets_of(drops: &[DropReport], reason: weft_tunnel::DropReason) -> u64 {
    drops.iter().filter(|drop| drop.reason == reason.label()).map(|drop| drop.packets).sum()
}
