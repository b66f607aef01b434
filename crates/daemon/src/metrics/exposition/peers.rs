//! Metrics for each peer: those that WireGuard's dashboards know from prometheus_wireguard_exporter, under the same
//! names and labels, and two of weft's own.

use std::fmt;

use super::{Labels, Writer};
use crate::status::{PeerReport, StatusReport, should_have_session};

pub(super) fn write(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let nets: Vec<String> = report.peers.iter().map(|peer| peer.allowed_ips.join(",")).collect();
    let peers = || report.peers.iter().zip(&nets);
    writer.counters(
        "wireguard_sent_bytes",
        "UDP payload bytes sent to the peer.",
        peers().map(|peer| (labels(peer), peer.0.tx_bytes)),
    )?;
    writer.counters(
        "wireguard_received_bytes",
        "UDP payload bytes received from the peer and authenticated.",
        peers().map(|peer| (labels(peer), peer.0.rx_bytes)),
    )?;
    writer.gauges(
        "wireguard_latest_handshake_seconds",
        "Unix time of the latest handshake with the peer; 0: none yet.",
        peers().map(|peer| (labels(peer), handshake_time(peer.0, report.unix_time_ms))),
    )?;
    writer.gauges(
        "weft_peer_expected",
        "Whether the peer should have a session: it has a persistent keepalive, or something waits for it.",
        peers().map(|peer| (labels(peer), u32::from(should_have_session(peer.0)))),
    )?;
    writer.gauges(
        "weft_peer_staged_bytes",
        "Bytes of packets that wait for a session with the peer.",
        peers().map(|peer| (labels(peer), peer.0.staged_bytes)),
    )
}

fn labels<'l>((peer, nets): (&'l PeerReport, &'l String)) -> Labels<'l, 3> {
    [
        ("public_key", &peer.public_key),
        ("allowed_ips", nets),
        ("friendly_name", peer.friendly_name.as_deref().unwrap_or_default()),
    ]
}

/// In whole seconds, as the exporter has it.
fn handshake_time(peer: &PeerReport, unix_time_ms: u64) -> u64 {
    peer.latest_handshake_ms.map_or(0, |ago| unix_time_ms.saturating_sub(ago) / 1000)
}
