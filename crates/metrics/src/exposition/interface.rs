//! Metrics of the interface as a whole.

use std::fmt;

use weft_dataplane::SAMPLED_TURNS;
use weft_report::finding::Level;
use weft_report::{StatusReport, has_session, stage_of, unready};
use weft_tunnel::DropReason;

use super::{Labels, Writer, seconds};

/// Upper bounds of the sizes of UDP batches, the same as in [`weft_report::UdpReport::batch_segments`].
const BATCH_BOUNDS: [f64; 7] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

pub(super) fn write(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    state(report, writer)?;
    drops(report, writer)?;
    tunnel(report, writer)?;
    queues(report, writer)?;
    packet_threads(report, writer)?;
    times(report, writer)?;
    udp(report, writer)?;
    tun(report, writer)
}

fn one(label: &'static str, value: &'static str) -> Labels<'static, 1> {
    [(label, value)]
}

fn state(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    writer.info(
        "weft_build",
        "The weft that runs the interface.",
        &[("version", &report.weft_version), ("os", std::env::consts::OS), ("arch", std::env::consts::ARCH)],
    )?;
    writer.info(
        "weft_cipher",
        "What computes ChaCha20-Poly1305: avx512ifma, aws-lc, or for tests portable.",
        &[("cipher", &*report.cipher)],
    )?;
    writer.gauge(
        "weft_start_time_seconds",
        "Unix time at which the interface came up, by the clock of then.",
        report.start_unix_ms() as f64 / 1000.0,
    )?;
    writer.gauge(
        "weft_ready",
        "Whether every peer that should have a session has one, and nothing else is a problem; as /readyz.",
        u32::from(unready(report).is_empty()),
    )?;
    let levels = [Level::Note, Level::Warning, Level::Problem];
    writer.gauges(
        "weft_findings",
        "Findings by level, as in `weft status`.",
        levels.map(|level| {
            let count = report.findings.iter().filter(|finding| finding.level == level).count();
            (one("level", level.label()), count as u64)
        }),
    )?;
    let with_session = report.peers.iter().filter(|peer| has_session(peer)).count();
    writer.gauge("weft_peers", "Configured peers.", report.peers.len() as u64)?;
    writer.gauge(
        "weft_peers_with_session",
        "Peers with a handshake recent enough for a session.",
        with_session as u64,
    )?;
    writer.gauge("weft_mtu_bytes", "The largest inner packet.", u32::from(report.mtu))
}

fn drops(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    writer.counters(
        "weft_dropped_packets",
        "Packets dropped, as the wire would see them, by reason, and the direction and stage that it belongs to.",
        DropReason::ALL.map(|reason| {
            let (direction, stage) = stage_of(reason);
            let labels =
                [("reason", reason.label()), ("direction", direction), ("stage", stage)];
            (labels, report.dropped_for(reason))
        }),
    )?;
    writer.counters(
        "weft_kernel_dropped_packets",
        "What the kernel threw away because it was not taken in time: by weft, the queue of the TUN (super-packets count \
         once) and the UDP receive buffer; behind weft, what it wrote into a veth pair that stands for a TUN.",
        [
            ([("direction", "outbound"), ("stage", "tun")], report.tun.queue_overflows),
            ([("direction", "inbound"), ("stage", "tun")], report.tun.write_drops),
            ([("direction", "inbound"), ("stage", "udp")], report.udp.receive_overflows),
        ],
    )
}

fn tunnel(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    use DropReason::*;
    let tunnel = &report.tunnel;
    let refused = [
        InvalidMac,
        CookieRequired,
        HandshakeRateLimited,
        UnknownPeer,
        ReplayedHandshake,
        UnexpectedHandshake,
    ];
    let outcomes = [("completed", tunnel.handshakes), ("timed_out", tunnel.handshakes_timed_out)];
    let refused = refused.map(|reason| (reason.label(), report.dropped_for(reason)));
    writer.counters(
        "weft_handshakes",
        "Handshakes by outcome: completed, timed_out (given up after 90 s without an answer and without anything new to \
         send), or why a message of a peer was refused.",
        outcomes.into_iter().chain(refused).map(|(outcome, count)| (one("outcome", outcome), count)),
    )?;
    writer.counters(
        "weft_handshake_messages_sent",
        "Handshake messages sent, by type; cookie replies are sent under a load of handshakes.",
        [
            ("initiation", tunnel.initiations_sent),
            ("response", tunnel.responses_sent),
            ("cookie_reply", tunnel.cookies_sent),
        ]
        .map(|(kind, count)| (one("type", kind), count)),
    )?;
    writer.gauge(
        "weft_handshake_load",
        "Whether handshakes exceed their budget, so that senders have to prove their address.",
        u32::from(tunnel.handshake_load_ms.is_some()),
    )?;
    writer.counter(
        "weft_handshake_work_seconds",
        "Time of the packet thread that handshakes took, counted by what they cost: a tenth of it at most, without the messages that are refused on the first look.",
        tunnel.handshake_work_ms as f64 / 1000.0,
    )?;
    writer.gauge(
        "weft_initiations_waiting",
        "Peers that a handshake initiation is due to, and waits for time.",
        tunnel.initiations_waiting as u64,
    )?;
    writer.counter("weft_encrypted_packets", "Inner packets encrypted.", tunnel.sealed)?;
    writer.counter("weft_decrypted_packets", "Inner packets decrypted and handed on.", tunnel.opened)?;
    writer.counter("weft_keepalives_received", "Keepalives received.", tunnel.keepalives_received)?;
    writer.counters(
        "weft_icmp_errors",
        "ICMP errors about packets that were not forwarded: sent, or suppressed by the rate limit.",
        [("sent", tunnel.icmp_sent), ("suppressed", tunnel.icmp_suppressed)]
            .map(|(result, count)| (one("result", result), count)),
    )
}

fn queues(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let queues = &report.queues;
    writer.gauge(
        "weft_staged_bytes",
        "Bytes of packets that wait for a session, all peers together.",
        queues.staged_bytes,
    )?;
    writer.gauge("weft_staged_packets", "Packets that wait for a session.", queues.staged_packets)?;
    writer.gauge(
        "weft_staging_budget_bytes",
        "Bytes that may wait for a session, all peers together: a share of the available memory.",
        queues.staging_budget_bytes,
    )?;
    writer.gauge(
        "weft_read_ahead_bytes",
        "Bytes that were read from the TUN and are not encrypted yet.",
        queues.read_ahead_bytes as u64,
    )?;
    writer.gauge(
        "weft_transmit_queue_batches",
        "Encrypted batches that wait for the socket.",
        queues.transmit_waiting as u64,
    )?;
    writer.gauge(
        "weft_control_queue_messages",
        "Handshake messages and keepalives that wait for the socket.",
        queues.control_waiting as u64,
    )
}

fn packet_threads(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let threads = &report.packet_threads;
    let numbers: Vec<String> = (0..threads.len()).map(|number| number.to_string()).collect();
    let threads = || numbers.iter().map(String::as_str).zip(threads);
    writer.counters(
        "weft_packet_thread_busy_seconds",
        "Time that the turns of each packet thread took.",
        threads().map(|(number, thread)| ([("thread", number)], seconds(thread.busy_ns))),
    )?;
    writer.gauges(
        "weft_packet_thread_peers",
        "Peers that each packet thread serves.",
        threads().map(|(number, thread)| ([("thread", number)], thread.peers as u64)),
    )?;
    writer.counter(
        "weft_peer_moves",
        "Peers that moved to a packet thread with less to do.",
        report.peer_moves,
    )?;
    writer.counters(
        "weft_packet_thread_packets",
        "Inner packets that each packet thread encrypted (outbound) or decrypted (inbound).",
        threads().flat_map(|(number, thread)| {
            [("outbound", thread.sealed), ("inbound", thread.opened)]
                .map(|(direction, count)| ([("thread", number), ("direction", direction)], count))
        }),
    )?;
    writer.counters(
        "weft_packet_thread_handed_over_bytes",
        "Bytes that each packet thread read from the TUN for peers of other packet threads.",
        threads().map(|(number, thread)| ([("thread", number)], thread.handed_over_bytes)),
    )
}

fn times(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let times = &report.times;
    writer.histograms(
        "weft_turn_seconds",
        "How long turns of the event loop take: what waits elsewhere waits no longer than that.",
        [([], &times.turns)],
    )?;
    let help = format!(
        "How long a stage of the event loop takes with a batch, in one turn of {SAMPLED_TURNS} at least."
    );
    writer.histograms(
        "weft_stage_seconds",
        &help,
        times.stages.iter().map(|stage| {
            let labels = [("direction", stage.direction.as_str()), ("stage", stage.stage.as_str())];
            (labels, &stage.times)
        }),
    )
}

fn udp(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let udp = &report.udp;
    for (name, help, count) in [
        ("weft_udp_sent_datagrams", "Datagrams that the kernel accepted.", udp.datagrams_sent),
        ("weft_udp_sent_bytes", "UDP payload bytes that the kernel accepted.", udp.bytes_sent),
        ("weft_udp_send_calls", "System calls that sent at least one datagram.", udp.batches_sent),
        ("weft_udp_received_datagrams", "Datagrams that arrived, authentic or not.", udp.datagrams_received),
        ("weft_udp_received_bytes", "UDP payload bytes that arrived.", udp.bytes_received),
        ("weft_udp_receive_calls", "System calls that received at least one datagram.", udp.recv_calls),
        (
            "weft_udp_junk_datagrams",
            "Datagrams that the kernel dropped because they cannot be messages for this interface, or as part of a flood of initiations.",
            udp.junk_dropped,
        ),
        (
            "weft_udp_gso_fallbacks",
            "Batches sent as single datagrams, because the kernel or the path does not take them as one (UDP GSO).",
            udp.gso_fallbacks,
        ),
    ] {
        writer.counter(name, help, count)?;
    }
    let mut buckets: Vec<(f64, u64)> = BATCH_BOUNDS.into_iter().zip(udp.batch_segments).collect();
    buckets.push((f64::INFINITY, 0));
    writer.histogram(
        "weft_udp_batch_datagrams",
        "Datagrams in each message that the kernel was given to send (UDP GSO).",
        &buckets,
        udp.datagrams_sent,
    )?;
    writer.gauges(
        "weft_udp_offload_enabled",
        "Whether the kernel splits (gso) or joins (gro) datagrams.",
        [("gso", udp.gso), ("gro", udp.gro)]
            .map(|(offload, enabled)| (one("offload", offload), u32::from(enabled))),
    )?;
    writer.gauges(
        "weft_udp_buffer_bytes",
        "The socket buffers, without the kernel's own bookkeeping; 0: unknown.",
        [("receive", udp.receive_buffer_bytes), ("send", udp.send_buffer_bytes)]
            .map(|(buffer, bytes)| (one("buffer", buffer), bytes)),
    )
}

fn tun(report: &StatusReport, writer: &mut Writer<'_>) -> fmt::Result {
    let tun = &report.tun;
    for (name, help, count) in [
        ("weft_tun_read_packets", "Packets read from the TUN; a super-packet counts once.", tun.packets_read),
        ("weft_tun_read_segments", "Packets read as the wire would see them.", tun.segments_read),
        ("weft_tun_read_bytes", "Bytes read from the TUN.", tun.bytes_read),
        ("weft_tun_read_calls", "System calls that read, those that found nothing included.", tun.read_calls),
        ("weft_tun_read_batches", "Batches of packets that were read.", tun.batches_read),
        (
            "weft_tun_written_packets",
            "Packets written to the TUN, a system call each; a super-packet counts once.",
            tun.packets_written,
        ),
        ("weft_tun_written_segments", "Packets written as they came from the peers.", tun.segments_written),
        ("weft_tun_written_bytes", "Bytes written to the TUN.", tun.bytes_written),
    ] {
        writer.counter(name, help, count)?;
    }
    let numbers: Vec<String> = (0..tun.queues.len()).map(|number| number.to_string()).collect();
    let queues =
        || numbers.iter().zip(&tun.queues).map(|(number, queue)| ([("queue", number.as_str())], queue));
    writer.counters(
        "weft_tun_queue_read_bytes",
        "Bytes read from each queue of the TUN.",
        queues().map(|(labels, queue)| (labels, queue.bytes_read)),
    )?;
    writer.counters(
        "weft_tun_queue_written_bytes",
        "Bytes written to each queue of the TUN.",
        queues().map(|(labels, queue)| (labels, queue.bytes_written)),
    )
}
