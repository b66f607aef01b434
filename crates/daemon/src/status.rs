//! Builds a [`StatusReport`] from a snapshot of the packet thread and from the state of the control thread.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_config::settings::ReportSettings;
use weft_control::Configured;
use weft_dataplane::{Histogram, PacketThread, SendFailure, Snapshot, Stage, Times};
use weft_embed::Stack;
use weft_report::{
    AlternationReport, DropReport, ExpiredPeerReport, HistogramReport, LimitReport, PacketThreadReport,
    PeerReport, QueueReport, RefusalReport, SendFailureReport, StageReport, StatusReport, ThreadReport,
    TimesReport, TunQueueReport, TunReport, TunnelReport, UdpReport, stage_of,
};
use weft_tun::{TunOffload, TunStatsSnapshot};
use weft_tunnel::{
    DropCounters, HandshakeLoad, PeerConfig, PeerSettings, PeerSnapshot, PublicKey, Rate, TunnelStats,
};
use weft_udp::{UdpFeatures, UdpStats};

mod connections;
#[cfg(target_os = "linux")]
mod device;

#[cfg(not(target_os = "linux"))]
use crate::unsupported as device;

/// What is known of an interface outside the tunnel. The code that sets the interface up keeps it up to date.
#[derive(Clone, Debug)]
pub struct Running {
    pub interface: String,
    /// The absolute path of the file that the interface was brought up from.
    pub source: Option<PathBuf>,
    /// The hash of the text of the file that was loaded last.
    pub source_hash: Option<u64>,
    /// Where the kernel counts the device's packets (proc_pid_net(5)).
    pub proc_net: PathBuf,
    /// What the device is: `tun`, or in its place `veth`, or `own` for a TCP/IP stack of this process.
    pub backing: &'static str,
    /// What the kernel counts for the far end of a veth pair, as proc_pid_net(5) has it.
    pub far_counters: Option<Arc<File>>,
    /// Size of the largest inner packet, in bytes.
    pub mtu: u16,
    /// When the interface came up.
    pub since: Instant,
    /// When the interface came up, by the wall clock.
    pub since_wall_clock: SystemTime,
    /// Number of TUN queues with reader and writer threads.
    pub tun_threads: usize,
    /// The super-packets that the TUN reads and writes.
    pub tun_offload: TunOffload,
    pub addresses: Vec<String>,
    /// The routes in force.
    pub routes: Vec<String>,
    /// DNS in force.
    pub dns: Vec<String>,
    /// Firewall rules in force.
    pub firewall: Vec<String>,
    /// The peers in the configuration file.
    pub file: HashMap<PublicKey, FilePeer>,
    /// The peers in the configuration file that have ended.
    pub expired: Vec<ExpiredPeerReport>,
    /// What is known of peers beside their sessions.
    pub hints: HashMap<PublicKey, PeerHints>,
    /// The TCP/IP stack of this process in the place of a device.
    pub stack: Option<Stack>,
    /// The processes that use an interface without root.
    pub members: Arc<Mutex<Vec<u32>>>,
    /// Findings of the daemon itself, such as steps that failed without ending it.
    pub findings: Vec<weft_report::finding::Finding>,
}

/// A peer in the configuration file, as far as reports need the file.
#[derive(Clone, Debug, Default)]
pub struct FilePeer {
    pub settings: ReportSettings,
    /// Without an endpoint in the file only the peer's own packets show where it is, also after a restart.
    pub has_endpoint: bool,
}

/// What is known of a peer beside its sessions.
#[derive(Clone, Debug, Default)]
pub struct PeerHints {
    pub refusal: Option<Refusal>,
    pub alternation: Option<Alternation>,
}

/// What ICMP said of an endpoint.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub endpoint: SocketAddr,
    /// A part of a sentence.
    pub says: String,
    pub at: Instant,
}

/// How the endpoint of a peer goes back and forth.
#[derive(Clone, Debug)]
pub struct Alternation {
    pub endpoints: Vec<SocketAddr>,
    pub returns: u32,
    pub first: Instant,
    pub latest: Instant,
}

impl PeerHints {
    /// How long an alternation counts.
    pub(crate) const RECENT: Duration = Duration::from_secs(600);

    fn report(&self, now: Instant) -> (Option<RefusalReport>, Option<AlternationReport>) {
        let refusal = self.refusal.as_ref().map(|Refusal { endpoint, says, at }| RefusalReport {
            endpoint: endpoint.to_string(),
            says: says.clone(),
            age_ms: milliseconds(now, *at),
        });
        let recent =
            self.alternation.as_ref().filter(|moves| now.duration_since(moves.latest) < Self::RECENT);
        let alternation = recent.map(|moves| AlternationReport {
            endpoints: moves.endpoints.iter().map(ToString::to_string).collect(),
            returns: moves.returns,
            first_ms: milliseconds(now, moves.first),
            latest_ms: milliseconds(now, moves.latest),
        });
        (refusal, alternation)
    }
}

impl Running {
    /// Creates the state of an interface which comes up now.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            source: None,
            source_hash: None,
            // /proc/self shows the namespace of the process's first thread instead.
            proc_net: PathBuf::from("/proc/thread-self/net"),
            backing: "tun",
            far_counters: None,
            mtu: 0,
            since: Instant::now(),
            since_wall_clock: SystemTime::now(),
            tun_threads: 0,
            tun_offload: TunOffload::default(),
            addresses: Vec::new(),
            routes: Vec::new(),
            dns: Vec::new(),
            firewall: Vec::new(),
            file: HashMap::new(),
            expired: Vec::new(),
            hints: HashMap::new(),
            stack: None,
            members: Arc::default(),
            findings: Vec::new(),
        }
    }

    /// Returns the name of a peer in the configuration file.
    pub fn friendly_name(&self, peer: &PublicKey) -> Option<&str> {
        self.file.get(peer)?.settings.friendly_name.as_deref()
    }

    /// Returns the report of this moment.
    pub fn report(&self, configured: &Configured<'_>, snapshot: &Snapshot) -> StatusReport {
        self.report_at(Instant::now(), SystemTime::now(), configured, snapshot)
    }

    fn report_at(
        &self,
        now: Instant,
        wall_clock: SystemTime,
        configured: &Configured<'_>,
        snapshot: &Snapshot,
    ) -> StatusReport {
        // The peers of a snapshot are in the order of their packet threads.
        let thread_of = snapshot
            .packet_threads
            .iter()
            .enumerate()
            .flat_map(|(number, thread)| std::iter::repeat_n(Some(number), thread.peers));
        let live: HashMap<PublicKey, (&PeerSnapshot, Option<usize>)> = snapshot
            .peers
            .iter()
            .zip(thread_of.chain(std::iter::repeat(None)))
            .map(|(peer, thread)| (peer.public_key, (peer, thread)))
            .collect();
        let peer = |peer: &&PeerConfig| {
            let file = self.file.get(&peer.public_key);
            let live = live.get(&peer.public_key).copied();
            let hints = self.hints.get(&peer.public_key);
            let (refusal, alternation) = hints.map(|hints| hints.report(now)).unwrap_or_default();
            PeerReport {
                refusal,
                alternation,
                packet_thread: live.and_then(|(_, thread)| thread),
                settings: file.map(|file| file.settings.clone()).unwrap_or_default(),
                has_configured_endpoint: peer.endpoint.is_some() && file.is_none_or(|file| file.has_endpoint),
                ..report_of(peer, live.map(|(peer, _)| peer), now)
            }
        };
        let uptime_ms = milliseconds(now, self.since);
        let settings = configured.settings;
        let (connections, more_connections) =
            self.stack.as_ref().map(connections::connections).unwrap_or_default();
        StatusReport {
            interface: self.interface.clone(),
            weft_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            file: self.source.as_ref().map(|file| file.to_string_lossy().into_owned()),
            file_hash: self.source_hash.map(|hash| format!("{hash:016x}")),
            cipher: weft_aead::chosen().name().to_owned(),
            members: self.members.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            public_key: settings.private_key.as_ref().map(|key| key.public_key().to_string()),
            listen_port: settings.listen_port,
            fw_mark: settings.fw_mark,
            mtu: self.mtu,
            uptime_ms,
            unix_time_ms: u64::try_from(unix_ms(wall_clock)).unwrap_or(0),
            clock_shift_ms: unix_ms(wall_clock)
                .saturating_sub(unix_ms(self.since_wall_clock))
                .saturating_sub_unsigned(uptime_ms),
            addresses: self.addresses.clone(),
            routes: self.routes.clone(),
            dns: self.dns.clone(),
            firewall: self.firewall.clone(),
            tun: tun(self, snapshot),
            udp: udp(&snapshot.udp, snapshot.udp_features),
            tunnel: tunnel(&snapshot.tunnel, &snapshot.handshakes, now),
            queues: queues(snapshot),
            drops: drops(&snapshot.drops),
            send_failure: snapshot.send_failure.map(|failure| send_failure(failure, now)),
            peers: configured.peers.iter().map(peer).collect(),
            expired_peers: self.expired.clone(),
            connections,
            more_connections,
            packet_threads: snapshot.packet_threads.iter().map(packet_thread).collect(),
            peer_moves: snapshot.moves,
            threads: weft_confine::threads().into_iter().map(thread).collect(),
            times: times(&snapshot.times),
            recent: None,
            findings: self.findings.clone(),
        }
    }
}

fn milliseconds(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

/// Returns milliseconds since 1970, negative before.
fn unix_ms(time: SystemTime) -> i64 {
    let saturated = |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => saturated(since),
        Err(before) => -saturated(before.duration()),
    }
}

fn tun(running: &Running, snapshot: &Snapshot) -> TunReport {
    let stats = &snapshot.tun;
    TunReport {
        backing: running.backing.to_owned(),
        threads: running.tun_threads,
        tcp_offload: running.tun_offload.tcp,
        udp_offload: running.tun_offload.udp,
        packets_read: stats.packets_read,
        segments_read: stats.segments_read,
        bytes_read: stats.bytes_read,
        read_calls: stats.read_calls,
        batches_read: stats.batches_read,
        packets_written: stats.packets_written,
        segments_written: stats.segments_written,
        bytes_written: stats.bytes_written,
        queue_overflows: stats.uncounted_drops
            + device::queue_overflows(&running.proc_net, &running.interface),
        write_drops: running.far_counters.as_deref().map_or(0, device::far_end_drops),
        queues: snapshot.tun_queues.iter().map(tun_queue).collect(),
    }
}

fn thread(thread: weft_confine::Thread) -> ThreadReport {
    let weft_confine::Thread { name, capabilities, is_filtered } = thread;
    ThreadReport { name, capabilities, is_filtered }
}

fn packet_thread(thread: &PacketThread) -> PacketThreadReport {
    let PacketThread { peers, busy_ns, sealed, opened, handed_over_bytes } = *thread;
    PacketThreadReport { peers, busy_ns, sealed, opened, handed_over_bytes, busy: None }
}

fn tun_queue(stats: &TunStatsSnapshot) -> TunQueueReport {
    TunQueueReport {
        packets_read: stats.packets_read,
        segments_read: stats.segments_read,
        bytes_read: stats.bytes_read,
        packets_written: stats.packets_written,
        segments_written: stats.segments_written,
        bytes_written: stats.bytes_written,
        rates: None,
    }
}

fn udp(stats: &UdpStats, features: UdpFeatures) -> UdpReport {
    UdpReport {
        gso: features.gso,
        gro: features.gro,
        steered: features.steered,
        receive_buffer_bytes: features.receive_buffer_bytes,
        send_buffer_bytes: features.send_buffer_bytes,
        wanted_receive_buffer_bytes: features.wanted_receive_buffer_bytes,
        wanted_send_buffer_bytes: features.wanted_send_buffer_bytes,
        datagrams_sent: stats.datagrams_sent,
        bytes_sent: stats.bytes_sent,
        batches_sent: stats.batches_sent,
        batch_segments: stats.batch_segments,
        gso_fallbacks: stats.gso_fallbacks,
        receive_overflows: stats.receive_overflows,
        junk_dropped: stats.junk_dropped,
        datagrams_received: stats.datagrams_received,
        bytes_received: stats.bytes_received,
        recv_calls: stats.recv_calls,
    }
}

fn tunnel(stats: &TunnelStats, load: &HandshakeLoad, now: Instant) -> TunnelReport {
    TunnelReport {
        sealed: stats.sealed,
        opened: stats.opened,
        handshakes: stats.handshakes,
        keepalives_received: stats.keepalives_received,
        cookies_sent: stats.cookies_sent,
        handshakes_timed_out: stats.handshakes_timed_out,
        initiations_sent: stats.initiations_sent,
        responses_sent: stats.responses_sent,
        handshake_load_ms: load.since.map(|since| milliseconds(now, since)),
        handshake_work_ms: u64::try_from(load.work.as_millis()).unwrap_or(u64::MAX),
        initiations_waiting: load.initiations_waiting,
        icmp_sent: stats.icmp_sent,
        icmp_suppressed: stats.icmp_suppressed,
    }
}

fn queues(snapshot: &Snapshot) -> QueueReport {
    QueueReport {
        staged_bytes: snapshot.tunnel.staged_bytes as u64,
        staged_packets: snapshot.tunnel.staged_segments,
        staging_budget_bytes: snapshot.tunnel.staging_budget_bytes as u64,
        control_waiting: snapshot.queues.control,
        transmit_waiting: snapshot.queues.transmit,
        read_ahead_bytes: snapshot.queues.read_ahead_bytes,
    }
}

fn times(times: &Times) -> TimesReport {
    let stage = |stage: Stage| {
        let (direction, label) = stage.label();
        let times = histogram(times.stage(stage));
        StageReport { direction: direction.to_owned(), stage: label.to_owned(), times }
    };
    TimesReport { turns: histogram(times.turns()), stages: Stage::ALL.into_iter().map(stage).collect() }
}

fn histogram(histogram: &Histogram) -> HistogramReport {
    let filled = histogram.counts().iter().enumerate().filter(|&(_, &count)| count > 0);
    HistogramReport {
        count: histogram.counts().iter().sum(),
        sum_ns: histogram.sum_ns(),
        buckets: filled.map(|(bucket, &count)| (Histogram::bound_ns(bucket), count)).collect(),
    }
}

fn drops(counters: &DropCounters) -> Vec<DropReport> {
    let occurred = counters.iter().filter(|&(_, packets)| packets > 0);
    let report = |(reason, packets)| {
        let (direction, stage) = stage_of(reason);
        DropReport {
            reason: reason.label().to_owned(),
            direction: direction.to_owned(),
            stage: stage.to_owned(),
            packets,
        }
    };
    occurred.map(report).collect()
}

fn send_failure(failure: SendFailure, now: Instant) -> SendFailureReport {
    let error = match failure.os_error {
        Some(number) => io::Error::from_raw_os_error(number).to_string(),
        None => "the datagram is too long".to_owned(),
    };
    SendFailureReport {
        endpoint: failure.destination.to_string(),
        error,
        age_ms: milliseconds(now, failure.at),
    }
}

/// Reports a peer. A peer that is not in the tunnel, as while the interface has no key, has its configured
/// endpoint and no traffic.
fn report_of(peer: &PeerConfig, live: Option<&PeerSnapshot>, now: Instant) -> PeerReport {
    let PeerSettings { preshared_key, persistent_keepalive, limits } = &peer.settings;
    let endpoint = live.map_or(peer.endpoint, |live| live.endpoint);
    let at_rest = PeerReport {
        public_key: peer.public_key.to_string(),
        has_preshared_key: preshared_key.is_some(),
        endpoint: endpoint.map(|endpoint| endpoint.to_string()),
        persistent_keepalive: persistent_keepalive.map(Into::into),
        allowed_ips: peer.allowed_ips.iter().map(ToString::to_string).collect(),
        limit_to_peer: limit(limits.to_peer, live.map(|live| live.over_rate_to_peer)),
        limit_from_peer: limit(limits.from_peer, live.map(|live| live.over_rate_from_peer)),
        ..PeerReport::default()
    };
    live.map_or(at_rest.clone(), |live| PeerReport {
        latest_handshake_ms: live.last_handshake.map(|at| milliseconds(now, at)),
        is_trying: live.is_trying,
        tx_bytes: live.sent_bytes,
        rx_bytes: live.received_bytes,
        rx_expected_messages: live.arrivals.expected,
        rx_messages: live.arrivals.received,
        rx_displaced_messages: live.arrivals.displaced,
        staged_bytes: live.staged_bytes as u64,
        ..at_rest
    })
}

fn limit(rate: Option<Rate>, dropped: Option<u64>) -> Option<LimitReport> {
    rate.map(|rate| LimitReport {
        bits_per_second: rate.bits_per_second(),
        dropped_packets: dropped.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use weft_config::settings::InterfaceSettings;
    use weft_tunnel::{Arrivals, DropReason, PeerLimits, PresharedKey};

    use super::*;
    use weft_dataplane::QueueDepths;

    /// Returns the snapshot of a packet thread that has done nothing yet.
    fn nothing_yet() -> Snapshot {
        Snapshot {
            udp: UdpStats::default(),
            udp_features: UdpFeatures::default(),
            tunnel: TunnelStats::default(),
            drops: DropCounters::default(),
            peers: Vec::new(),
            tun: TunStatsSnapshot::default(),
            tun_queues: Vec::new(),
            queues: QueueDepths::default(),
            times: Times::default(),
            send_failure: None,
            handshakes: HandshakeLoad::default(),
            packet_threads: Vec::new(),
            moves: 0,
        }
    }

    #[test]
    fn a_report_has_what_the_threads_know_and_no_clock_of_its_own() {
        let (since, since_wall_clock) = (Instant::now(), UNIX_EPOCH + Duration::from_secs(2_000_000_000));
        let key = PublicKey::from_bytes([7; 32]);
        let office = ReportSettings::named("office");
        let running = Running {
            mtu: 1420,
            since,
            since_wall_clock,
            file: HashMap::from([(key, FilePeer { settings: office, has_endpoint: true })]),
            ..Running::new("wg0")
        };
        let peer = |public_key| PeerConfig {
            public_key,
            endpoint: Some("192.0.2.1:1".parse().unwrap()),
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap()],
            settings: PeerSettings {
                preshared_key: Some(PresharedKey::from_bytes([1; 32])),
                persistent_keepalive: NonZeroU16::new(25),
                limits: PeerLimits { to_peer: None, from_peer: Rate::from_bits_per_second(8000) },
            },
        };
        let peers = [peer(PublicKey::from_bytes([8; 32])), peer(key)];
        let settings = InterfaceSettings { listen_port: 51820, ..InterfaceSettings::default() };
        let configured = Configured { settings: &settings, peers: peers.iter().collect() };
        let mut drops = DropCounters::default();
        drops.add(DropReason::NoPeer, 3);
        let snapshot = Snapshot {
            udp: UdpStats { datagrams_sent: 5, ..UdpStats::default() },
            udp_features: UdpFeatures { gro: true, ..UdpFeatures::default() },
            tunnel: TunnelStats { staged_bytes: 9, ..TunnelStats::default() },
            drops,
            peers: vec![PeerSnapshot {
                public_key: key,
                endpoint: None,
                source: None,
                last_handshake: Some(since + Duration::from_secs(60)),
                path_limit: None,
                is_trying: true,
                over_rate_to_peer: 0,
                over_rate_from_peer: 3,
                sent_bytes: 1,
                received_bytes: 2,
                arrivals: Arrivals { expected: 8, received: 7, displaced: 1 },
                staged_bytes: 9,
            }],
            tun_queues: vec![TunStatsSnapshot { bytes_read: 6, ..TunStatsSnapshot::default() }],
            queues: QueueDepths { control: 4, ..QueueDepths::default() },
            send_failure: Some(SendFailure {
                destination: "192.0.2.9:1".parse().unwrap(),
                reason: DropReason::DatagramTooLong,
                os_error: None,
                at: since + Duration::from_secs(89),
            }),
            ..nothing_yet()
        };
        // 90 s later, by a clock that was set back by 30 s meanwhile.
        let report = running.report_at(
            since + Duration::from_secs(90),
            since_wall_clock + Duration::from_secs(60),
            &configured,
            &snapshot,
        );
        assert_eq!((report.uptime_ms, report.clock_shift_ms), (90_000, -30_000));
        assert_eq!(report.unix_time_ms, 2_000_000_060_000);
        let [idle, busy] = &report.peers[..] else { panic!("{:?}", report.peers) };
        assert_eq!((busy.latest_handshake_ms, busy.persistent_keepalive), (Some(30_000), Some(25)));
        assert!(busy.is_trying && busy.has_preshared_key && busy.endpoint.is_none());
        assert_eq!(busy.settings.friendly_name.as_deref(), Some("office"));
        assert_eq!(busy.limit_to_peer, None);
        assert_eq!(busy.limit_from_peer, Some(LimitReport { bits_per_second: 8000, dropped_packets: 3 }));
        // Not in the tunnel: it has its configured endpoint and no traffic.
        assert_eq!((idle.endpoint.as_deref(), idle.latest_handshake_ms), (Some("192.0.2.1:1"), None));
        assert_eq!((report.queues.staged_bytes, report.queues.control_waiting), (9, 4));
        assert_eq!(report.tun.queues.iter().map(|queue| queue.bytes_read).collect::<Vec<_>>(), [6]);
        assert!(report.udp.datagrams_sent == 5 && report.udp.gro && !report.udp.gso);
        let failure = report.send_failure.as_ref().unwrap();
        assert_eq!((failure.endpoint.as_str(), failure.age_ms), ("192.0.2.9:1", 1000));
        let drop = DropReport {
            reason: "no_peer".to_owned(),
            direction: "outbound".to_owned(),
            stage: "routing".to_owned(),
            packets: 3,
        };
        assert_eq!(report.drops, [drop]);
        assert_eq!(report.dropped_for(DropReason::NoPeer), 3);
    }

    #[test]
    fn an_endpoint_that_a_peer_was_only_heard_from_is_not_a_configured_one() {
        let [said, heard, carried_over] = [1, 2, 3].map(|byte| PublicKey::from_bytes([byte; 32]));
        let peer = |public_key, endpoint: Option<&str>| PeerConfig {
            public_key,
            endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
            allowed_ips: Vec::new(),
            settings: PeerSettings::default(),
        };
        // A daemon that continues after another daemon knows the addresses of roaming peers.
        let address = Some("192.0.2.1:1");
        let peers = [peer(said, address), peer(heard, None), peer(carried_over, address)];
        let settings = InterfaceSettings::default();
        let configured = Configured { settings: &settings, peers: peers.iter().collect() };
        let file = HashMap::from([heard, carried_over].map(|key| (key, FilePeer::default())));
        let running = Running { file, ..Running::new("wg0") };
        let report = running.report(&configured, &nothing_yet());
        let are_configured: Vec<bool> =
            report.peers.iter().map(|peer| peer.has_configured_endpoint).collect();
        assert_eq!(are_configured, [true, false, false]);
    }

    #[test]
    fn the_start_by_the_wall_clock_never_changes() {
        let (since, came_up_at) = (Instant::now(), Duration::from_nanos(2_000_000_000_000_900_000));
        let since_wall_clock = UNIX_EPOCH + came_up_at;
        let running = Running { since, since_wall_clock, ..Running::new("wg0") };
        let settings = InterfaceSettings::default();
        let configured = Configured { settings: &settings, peers: Vec::new() };
        let start_after = |elapsed: Duration, wall_clock: SystemTime| {
            let report = running.report_at(since + elapsed, wall_clock, &configured, &nothing_yet());
            report.start_unix_ms()
        };
        // The two clocks begin a millisecond at different moments.
        for microseconds in [0, 50, 100, 150, 950, 1_000, 1_099, 1_100, 15_000_050, 15_000_999] {
            let elapsed = Duration::from_micros(microseconds);
            let start = start_after(elapsed, since_wall_clock + elapsed);
            assert_eq!(start, 2_000_000_000_000, "{microseconds} us later");
        }
        // The clock was set forward by years, as at the first answer of a time server, or set back.
        let later = Duration::from_micros(90_000_050);
        let set_forward = since_wall_clock + Duration::from_secs(300_000_000) + later;
        assert_eq!(start_after(later, set_forward), 2_000_000_000_000);
        let set_back = UNIX_EPOCH + Duration::from_micros(30_000_777);
        assert_eq!(start_after(later, set_back), 2_000_000_000_000);
    }
}
