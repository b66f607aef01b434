//! Metrics for each peer: those of prometheus_wireguard_exporter under the same names and labels, which
//! WireGuard dashboards use, and some specific to weft.

use std::fmt;

use weft_report::{LimitReport, PeerReport, StatusReport, should_have_session};

use super::{Labels, Writer};

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
        "Whether the peer should have a session: Expected in the configuration says so, or without that it has a \
         persistent keepalive, or an endpoint in the configuration and something to be sent.",
        peers().map(|peer| (labels(peer), u32::from(should_have_session(peer.0)))),
    )?;
    writer.gauges(
        "weft_peer_expires_seconds",
        "Unix time at which the peer ends, for each peer with Expires in the configuration.",
        peers().filter_map(|peer| Some((labels(peer), peer.0.settings.expires?.unix_seconds()))),
    )?;
    writer.gauges(
        "weft_peer_staged_bytes",
        "Bytes of packets that wait for a session with the peer.",
        peers().map(|peer| (labels(peer), peer.0.staged_bytes)),
    )?;
    let thread = |peer: &PeerReport| peer.packet_thread.filter(|_| report.packet_threads.len() > 1);
    writer.gauges(
        "weft_peer_packet_thread",
        "The packet thread that serves the peer, where there are several.",
        peers().filter_map(|peer| Some((labels(peer), thread(peer.0)? as u64))),
    )?;
    let limits =
        || peers().flat_map(|peer| limits(peer.0).map(move |(direction, limit)| (peer, direction, limit)));
    writer.gauges(
        "weft_peer_limit_bits_per_second",
        "Bits of inner IP packets that may pass in a second, for each direction of a peer that is limited.",
        limits().map(|(peer, direction, limit)| (with(labels(peer), direction), limit.bits_per_second)),
    )?;
    writer.counters(
        "weft_peer_limit_dropped_packets",
        "Packets of the peer that were more than its limit lets pass, since that was set.",
        limits().map(|(peer, direction, limit)| (with(labels(peer), direction), limit.dropped_packets)),
    )
}

/// Returns the limits of a peer, with their directions.
fn limits(peer: &PeerReport) -> impl Iterator<Item = (&'static str, &LimitReport)> {
    let limits = [("outbound", &peer.limit_to_peer), ("inbound", &peer.limit_from_peer)];
    limits.into_iter().filter_map(|(direction, limit)| Some((direction, limit.as_ref()?)))
}

fn with<'l>([key, allowed_ips, name]: Labels<'l, 3>, direction: &'static str) -> Labels<'l, 4> {
    [key, allowed_ips, name, ("direction", direction)]
}

fn labels<'l>((peer, nets): (&'l PeerReport, &'l String)) -> Labels<'l, 3> {
    [
        ("public_key", &peer.public_key),
        ("allowed_ips", nets),
        ("friendly_name", peer.settings.friendly_name.as_deref().unwrap_or_default()),
    ]
}

/// Returns the time of the latest handshake in whole seconds, like the exporter.
fn handshake_time(peer: &PeerReport, unix_time_ms: u64) -> u64 {
    peer.latest_handshake_ms.map_or(0, |ago| unix_time_ms.saturating_sub(ago) / 1000)
}
