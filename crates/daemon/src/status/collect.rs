//! The daemon's part: a report from a snapshot of the packet thread, and from what the control thread knows.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weft_tun::{TunOffload, TunStatsSnapshot};
use weft_tunnel::{DropCounters, PeerSnapshot, PublicKey, TunnelStats};

use super::report::{DropReport, PeerReport, QueueReport, StatusReport, TunReport, TunnelReport, UdpReport};
use super::stage::stage_of;
use crate::dataplane::Snapshot;
use crate::udp::{UdpFeatures, UdpStats};

/// What the control thread knows of an interface beside its peers.
#[derive(Clone, Debug)]
pub struct Running {
    /// Its name.
    pub interface: String,
    /// Its identity.
    pub public_key: Option<PublicKey>,
    /// The UDP port in use.
    pub listen_port: u16,
    /// The mark of outgoing packets; 0: none.
    pub fw_mark: u32,
    /// Bytes of the largest inner packet.
    pub mtu: u16,
    /// When it came up.
    pub since: Instant,
    /// The same by the wall clock.
    pub since_wall_clock: SystemTime,
    /// Queues of the TUN with threads of their own.
    pub tun_threads: usize,
    /// Which super-packets the TUN takes part in.
    pub tun_offload: TunOffload,
    /// The addresses of the device.
    pub addresses: Vec<String>,
    /// The routes in force.
    pub routes: Vec<String>,
    /// DNS in force.
    pub dns: Vec<String>,
    /// Firewall rules in force.
    pub firewall: Vec<String>,
    /// What the daemon itself has to say, as of steps that failed and were not worth ending for.
    pub findings: Vec<crate::finding::Finding>,
}

/// What the control thread knows of a peer, and the packet thread does not.
#[derive(Clone, Debug, Default)]
pub struct PeerDetails {
    /// What the configuration calls it.
    pub friendly_name: Option<String>,
    /// Whether it has a preshared key.
    pub has_preshared_key: bool,
    /// Seconds between its keepalives.
    pub persistent_keepalive: Option<u16>,
    /// Its allowed-ips.
    pub allowed_ips: Vec<String>,
}

impl Running {
    /// The report at this moment. `details` is asked once for each peer.
    pub fn report(&self, snapshot: &Snapshot, details: impl Fn(&PublicKey) -> PeerDetails) -> StatusReport {
        self.report_at(Instant::now(), SystemTime::now(), snapshot, details)
    }

    fn report_at(
        &self,
        now: Instant,
        wall_clock: SystemTime,
        snapshot: &Snapshot,
        details: impl Fn(&PublicKey) -> PeerDetails,
    ) -> StatusReport {
        let uptime_ms = milliseconds(now, self.since);
        StatusReport {
            interface: self.interface.clone(),
            weft_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            public_key: self.public_key.map(|key| key.to_string()),
            listen_port: self.listen_port,
            fw_mark: self.fw_mark,
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
            tun: tun(&snapshot.tun, self.tun_threads, self.tun_offload),
            udp: udp(&snapshot.udp, snapshot.udp_features),
            tunnel: tunnel(&snapshot.tunnel),
            queues: queues(snapshot),
            drops: drops(&snapshot.drops),
            peers: snapshot
                .peers
                .iter()
                .map(|peer| report_of(peer, details(&peer.public_key), now))
                .collect(),
            recent: None,
            findings: self.findings.clone(),
        }
    }
}

fn milliseconds(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970, negative before.
fn unix_ms(time: SystemTime) -> i64 {
    let saturated = |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => saturated(since),
        Err(before) => -saturated(before.duration()),
    }
}

fn tun(stats: &TunStatsSnapshot, threads: usize, offload: TunOffload) -> TunReport {
    TunReport {
        threads,
        tcp_offload: offload.tcp,
        udp_offload: offload.udp,
        packets_read: stats.packets_read,
        segments_read: stats.segments_read,
        bytes_read: stats.bytes_read,
        read_calls: stats.read_calls,
        batches_read: stats.batches_read,
        packets_written: stats.packets_written,
        segments_written: stats.segments_written,
        bytes_written: stats.bytes_written,
    }
}

fn udp(stats: &UdpStats, features: UdpFeatures) -> UdpReport {
    UdpReport {
        gso: features.gso,
        gro: features.gro,
        receive_buffer_bytes: features.receive_buffer_bytes,
        send_buffer_bytes: features.send_buffer_bytes,
        datagrams_sent: stats.datagrams_sent,
        bytes_sent: stats.bytes_sent,
        batches_sent: stats.batches_sent,
        batch_segments: stats.batch_segments,
        gso_fallbacks: stats.gso_fallbacks,
        datagrams_received: stats.datagrams_received,
        bytes_received: stats.bytes_received,
        recv_calls: stats.recv_calls,
    }
}

fn tunnel(stats: &TunnelStats) -> TunnelReport {
    TunnelReport {
        sealed: stats.sealed,
        opened: stats.opened,
        handshakes: stats.handshakes,
        keepalives_received: stats.keepalives_received,
        cookies_sent: stats.cookies_sent,
    }
}

fn queues(snapshot: &Snapshot) -> QueueReport {
    QueueReport {
        staged_bytes: snapshot.tunnel.staged_bytes as u64,
        staged_packets: snapshot.tunnel.staged_segments,
        control_waiting: snapshot.queues.control,
        transmit_waiting: snapshot.queues.transmit,
        read_ahead_bytes: snapshot.queues.read_ahead_bytes,
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

fn report_of(peer: &PeerSnapshot, details: PeerDetails, now: Instant) -> PeerReport {
    PeerReport {
        public_key: peer.public_key.to_string(),
        friendly_name: details.friendly_name,
        has_preshared_key: details.has_preshared_key,
        endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
        latest_handshake_ms: peer.last_handshake.map(|at| milliseconds(now, at)),
        is_trying: peer.is_trying,
        tx_bytes: peer.sent_bytes,
        rx_bytes: peer.received_bytes,
        staged_bytes: peer.staged_bytes as u64,
        persistent_keepalive: details.persistent_keepalive,
        allowed_ips: details.allowed_ips,
        rates: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_tunnel::DropReason;

    use super::*;
    use crate::dataplane::QueueDepths;

    #[test]
    fn a_report_has_what_the_threads_know_and_no_clock_of_its_own() {
        let (since, since_wall_clock) = (Instant::now(), UNIX_EPOCH + Duration::from_secs(2_000_000_000));
        let running = Running {
            interface: "wg0".to_owned(),
            public_key: None,
            listen_port: 51820,
            fw_mark: 0,
            mtu: 1420,
            since,
            since_wall_clock,
            tun_threads: 2,
            tun_offload: TunOffload { tcp: true, udp: false },
            addresses: Vec::new(),
            routes: Vec::new(),
            dns: Vec::new(),
            firewall: Vec::new(),
            findings: Vec::new(),
        };
        let key = PublicKey::from_bytes([7; 32]);
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
                last_handshake: Some(since + Duration::from_secs(60)),
                is_trying: true,
                sent_bytes: 1,
                received_bytes: 2,
                staged_bytes: 9,
            }],
            tun: TunStatsSnapshot::default(),
            queues: QueueDepths { control: 4, ..QueueDepths::default() },
        };
        // A minute and a half later, by a clock that was set back half a minute meanwhile.
        let report = running.report_at(
            since + Duration::from_secs(90),
            since_wall_clock + Duration::from_secs(60),
            &snapshot,
            |peer| PeerDetails {
                persistent_keepalive: (*peer == key).then_some(25),
                ..PeerDetails::default()
            },
        );
        assert_eq!((report.uptime_ms, report.clock_shift_ms), (90_000, -30_000));
        assert_eq!(report.unix_time_ms, 2_000_000_060_000);
        assert_eq!(report.peers[0].latest_handshake_ms, Some(30_000));
        assert_eq!(report.peers[0].persistent_keepalive, Some(25));
        assert!(report.peers[0].is_trying);
        assert_eq!((report.queues.staged_bytes, report.queues.control_waiting), (9, 4));
        assert!(report.udp.datagrams_sent == 5 && report.udp.gro && !report.udp.gso);
        let drop = DropReport {
            reason: "no_peer".to_owned(),
            direction: "outbound".to_owned(),
            stage: "routing".to_owned(),
            packets: 3,
        };
        assert_eq!(report.drops, [drop]);
        assert_eq!(report.dropped_for(DropReason::NoPeer), 3);
    }
}
