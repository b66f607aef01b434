//! Everything that a report says, for `weft status -v`, and everything about one peer.

use std::fmt::Write as _;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use weft_report::{LimitReport, PeerReport, StatusReport};
use weft_report::{age, bucket_label, bytes, finding, rate, total};

use super::glance;

/// The maximum number of entries of a list that are shown; the rest are counted. `--json` has all of them.
const SHOWN: usize = 6;
const SHOWN_CONNECTIONS: usize = 20;

/// Formats an interface with its peers, and the findings, for a terminal with this many columns.
pub(super) fn render(report: &StatusReport, width: Option<usize>) -> String {
    let mut text = format!(
        "\x1b[1m{}\x1b[0m  up {}, weft {}, process {}\n",
        report.interface,
        age(report.uptime_ms),
        report.weft_version,
        report.pid
    );
    text += &lines(&interface(report));
    // Writing to a string cannot fail.
    if report.packet_threads.len() > 1 {
        let _ = writeln!(text, "{}", packet_threads(report));
    }
    if report.tun.queues.len() > 1 {
        let _ = writeln!(text, "{}", tun_queues(report));
    }
    for peer in report.peers.iter().take(glance::SHOWN_PEERS) {
        text += &one_peer(peer, report);
    }
    text += &glance::more(report.peers.len());
    if !report.connections.is_empty() {
        let _ = writeln!(text, "{}", connections(report));
        text += &more_connections(report);
    }
    if !report.drops.is_empty() {
        let _ = writeln!(text, "{}", drops(report));
    }
    text + &finding::lines(&report.findings, width)
}

/// Formats everything about a peer.
pub(super) fn one_peer(peer: &PeerReport, report: &StatusReport) -> String {
    format!("\x1b[1mpeer {}\x1b[0m\n{}", peer.label(), peer_lines(peer, report))
}

/// All about a peer but its name, without colours.
pub(crate) fn peer_lines(peer: &PeerReport, report: &StatusReport) -> String {
    lines(&peer_rows(peer, report.packet_threads.len() > 1))
}

/// A name and a value a line. Further lines of a value stand below its first.
fn lines(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (name, value) in rows {
        for (number, line) in value.lines().enumerate() {
            let name = if number == 0 { name } else { "" };
            let _ = writeln!(text, "  {name:width$}  {line}");
        }
    }
    text
}

fn new_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .enforce_styling();
    table
}

fn interface(report: &StatusReport) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let mut row = |name, value| rows.push((name, value));
    if !report.members.is_empty() {
        let members: Vec<String> = report.members.iter().map(|id| format!("process {id}")).collect();
        row("used by", shortened(&members));
    }
    if let Some(file) = &report.file {
        row("file", file.clone());
    }
    row("public key", report.public_key.clone().unwrap_or_else(|| "none".to_owned()));
    row("listen port", report.listen_port.to_string());
    if report.fw_mark != 0 {
        row("mark", format!("{:#x}", report.fw_mark));
    }
    row("MTU", report.mtu.to_string());
    for (name, list) in [
        ("addresses", &report.addresses),
        ("routes", &report.routes),
        ("DNS", &report.dns),
        ("firewall", &report.firewall),
    ] {
        if !list.is_empty() {
            row(name, shortened(list));
        }
    }
    if !report.threads.is_empty() {
        row("confined", confined(report));
    }
    if !report.cipher.is_empty() {
        row("cipher", format!("ChaCha20-Poly1305 by {}", report.cipher));
    }
    row("device", device(report));
    row("sockets", sockets(report));
    row("sent", traffic(report.udp.bytes_sent, report.udp.datagrams_sent, rates(report, false)));
    row("received", traffic(report.udp.bytes_received, report.udp.datagrams_received, rates(report, true)));
    row("batches", batches(report));
    row("waiting", waiting(report));
    if report.peer_moves > 0 {
        row("moves", format!("{} of peers to packet threads with less to do", report.peer_moves));
    }
    let (tun, udp) = (report.tun.queue_overflows, report.udp.receive_overflows);
    if total([tun, udp]) > 0 {
        row("overflows", format!("{tun} packets of the TUN's queue, {udp} datagrams of the receive buffers"));
    }
    if report.tun.write_drops > 0 {
        row("undelivered", format!("{} packets that were written to the veth pair", report.tun.write_drops));
    }
    if report.udp.junk_dropped > 0 {
        row("junk", format!("{} datagrams that are no messages for it", report.udp.junk_dropped));
    }
    rows
}

/// The threads with a filter of system calls, and the others with their capabilities.
fn confined(report: &StatusReport) -> String {
    let all = report.threads.len();
    let mut names: Vec<&str> =
        report.threads.iter().filter(|of| of.is_filtered).map(|of| &*of.name).collect();
    let filtered = names.len();
    names.dedup();
    let mut lines = vec![match filtered {
        0 => "no thread".to_owned(),
        _ => format!("{filtered} of {all} threads: {}", names.join(", ")),
    }];
    for thread in report.threads.iter().filter(|of| !of.is_filtered && !of.capabilities.is_empty()) {
        let capabilities = match &thread.capabilities[..] {
            few @ ([_] | [_, _] | [_, _, _]) => few.join(", "),
            many => format!("{} capabilities", many.len()),
        };
        lines.push(format!("{} has {capabilities}", thread.name));
    }
    lines.join("\n")
}

fn device(report: &StatusReport) -> String {
    let tun = &report.tun;
    let threads = match tun.threads {
        0 if tun.queues.len() > 1 => format!("{} queues inline", tun.queues.len()),
        0 => "inline".to_owned(),
        1 => "1 queue".to_owned(),
        threads => format!("{threads} queues"),
    };
    let backing = match tun.backing.as_str() {
        "veth" => "veth pair and packet socket, ",
        "own" => "TCP/IP stack of this process, ",
        _ => "",
    };
    let offload = match (tun.tcp_offload, tun.udp_offload) {
        (true, true) => "super-packets of TCP and UDP",
        (true, false) => "super-packets of TCP",
        _ => "no super-packets",
    };
    format!("{backing}{threads}, {offload}")
}

fn sockets(report: &StatusReport) -> String {
    let udp = &report.udp;
    let on = |name, is_on| if is_on { format!("{name} on") } else { format!("{name} off") };
    let mut text = format!("{}, {}", on("GSO", udp.gso), on("GRO", udp.gro));
    if udp.receive_buffer_bytes > 0 {
        let _ = write!(
            text,
            ", buffers {} in, {} out",
            bytes(udp.receive_buffer_bytes),
            bytes(udp.send_buffer_bytes)
        );
    }
    if udp.gso_fallbacks > 0 {
        let _ = write!(text, ", {} batches sent one by one", udp.gso_fallbacks);
    }
    text
}

fn rates(report: &StatusReport, received: bool) -> Option<u64> {
    let rates = report.recent.as_ref()?.rates;
    Some(if received { rates.rx_bytes_per_second } else { rates.tx_bytes_per_second })
}

fn traffic(total: u64, datagrams: u64, bytes_per_second: Option<u64>) -> String {
    let now = bytes_per_second.map(|speed| format!(", {} now", rate(speed))).unwrap_or_default();
    let noun = if datagrams == 1 { "datagram" } else { "datagrams" };
    format!("{} in {datagrams} {noun}{now}", bytes(total))
}

/// Formats datagrams per call and packets per super-packet: how effective batching is.
fn batches(report: &StatusReport) -> String {
    let (udp, tun) = (&report.udp, &report.tun);
    let mut parts = Vec::new();
    let mut part = |count: u64, of: u64, what: &str| {
        if of > 0 {
            parts.push(format!("{:.1} {what}", count as f64 / of as f64));
        }
    };
    part(tun.segments_read, tun.packets_read, "packets a TUN read");
    part(udp.datagrams_sent, udp.batches_sent, "datagrams a send");
    part(udp.datagrams_received, udp.recv_calls, "datagrams a receive");
    part(tun.segments_written, tun.packets_written, "packets a TUN write");
    if parts.is_empty() {
        parts.push("no traffic yet".to_owned());
    }
    let sends = total(udp.batch_segments);
    if sends > 0 {
        let mut sizes = String::from("\nsends of");
        let mut separator = "";
        for (bucket, &count) in udp.batch_segments.iter().enumerate() {
            if count > 0 {
                let percent = 100.0 * count as f64 / sends as f64;
                let _ = write!(sizes, "{separator} {}: {percent:.0} %", bucket_label(bucket));
                separator = ",";
            }
        }
        return parts.join(", ") + &sizes;
    }
    parts.join(", ")
}

fn waiting(report: &StatusReport) -> String {
    let queues = &report.queues;
    let mut parts = Vec::new();
    if queues.staged_packets > 0 {
        parts.push(format!(
            "{} packets ({}) for a session",
            queues.staged_packets,
            bytes(queues.staged_bytes)
        ));
    }
    if queues.read_ahead_bytes > 0 {
        parts.push(format!("{} to be encrypted", bytes(queues.read_ahead_bytes as u64)));
    }
    if queues.transmit_waiting > 0 {
        parts.push(format!("{} batches for the socket", queues.transmit_waiting));
    }
    if queues.control_waiting > 0 {
        parts.push(format!("{} handshakes for the socket", queues.control_waiting));
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

/// Builds the table of packet threads: how they share the peers and the packets.
fn packet_threads(report: &StatusReport) -> Table {
    let mut table = new_table();
    table.set_header(["packet thread", "peers", "busy", "packets in", "packets out", "handed over"]);
    for (number, thread) in report.packet_threads.iter().enumerate() {
        table.add_row([
            number.to_string(),
            thread.peers.to_string(),
            thread.busy.map_or_else(|| "-".to_owned(), |busy| format!("{:.0} %", 100.0 * busy)),
            thread.opened.to_string(),
            thread.sealed.to_string(),
            bytes(thread.handed_over_bytes),
        ]);
    }
    table
}

/// Builds the table of TUN queues: traffic from the peers to this machine, and from this machine to the
/// peers.
fn tun_queues(report: &StatusReport) -> Table {
    let mut table = new_table();
    table.set_header(["queue", "received", "packets a write", "sent", "packets a read"]);
    for (number, queue) in report.tun.queues.iter().enumerate() {
        let mean = |segments: u64, packets: u64| match packets {
            0 => "-".to_owned(),
            packets => format!("{:.1}", segments as f64 / packets as f64),
        };
        table.add_row([
            Cell::new(number),
            amount(queue.bytes_written, queue.rates.map(|rates| rates.rx_bytes_per_second)),
            Cell::new(mean(queue.segments_written, queue.packets_written)),
            amount(queue.bytes_read, queue.rates.map(|rates| rates.tx_bytes_per_second)),
            Cell::new(mean(queue.segments_read, queue.packets_read)),
        ]);
    }
    table
}

/// Formats a total, and below it the rate, if it is known.
fn amount(total: u64, speed: Option<u64>) -> Cell {
    let mut lines = vec![bytes(total)];
    lines.extend(speed.map(rate));
    Cell::new(lines.join("\n"))
}

fn peer_rows(peer: &PeerReport, are_threads: bool) -> Vec<(&'static str, String)> {
    let amount = |total: u64, speed: Option<u64>, limit: &Option<LimitReport>| {
        let mut parts = vec![bytes(total)];
        parts.extend(speed.map(|speed| format!("{} now", rate(speed))));
        if let Some(limit) = limit {
            parts.push(format!("limit {}", rate(limit.bits_per_second / 8)));
            parts.push(format!("{} dropped", limit.dropped_packets));
        }
        parts.join(", ")
    };
    let (received, sent) =
        (peer.rates.map(|it| it.rx_bytes_per_second), peer.rates.map(|it| it.tx_bytes_per_second));
    let mut rows = vec![("public key", peer.public_key.clone())];
    if peer.has_preshared_key {
        rows.push(("preshared key", "yes".to_owned()));
    }
    rows.extend([
        ("endpoint", glance::endpoint(peer).to_owned()),
        ("handshake", glance::handshake(peer).0),
        ("received", amount(peer.rx_bytes, received, &peer.limit_from_peer)),
        ("sent", amount(peer.tx_bytes, sent, &peer.limit_to_peer)),
    ]);
    if peer.staged_bytes > 0 {
        rows.push(("waiting", format!("{} for a session", bytes(peer.staged_bytes))));
    }
    rows.push(("allowed IPs", shortened(&peer.allowed_ips)));
    rows.extend(peer.settings.expires.map(|expiry| ("ends", glance::expiry(expiry))));
    rows.push(("keepalive", peer.persistent_keepalive.map_or("off".to_owned(), |it| format!("{it} s"))));
    if let Some(number) = peer.packet_thread.filter(|_| are_threads) {
        rows.push(("thread", number.to_string()));
    }
    rows
}

/// The TCP connections of a stack of the process.
fn connections(report: &StatusReport) -> Table {
    let mut table = new_table();
    table.set_header(["connection", "state", "RTT", "window", "in flight", "sent", "received", "sent again"]);
    for one in report.connections.iter().take(SHOWN_CONNECTIONS) {
        table.add_row([
            format!("{} {}", one.local, one.remote),
            one.state.clone(),
            format!("{}.{} ms", one.rtt_us / 1000, one.rtt_us % 1000 / 100),
            bytes(one.cwnd_bytes),
            bytes(one.in_flight_bytes),
            bytes(one.acked_bytes),
            bytes(one.received_bytes),
            bytes(one.retransmitted_bytes),
        ]);
    }
    table
}

fn more_connections(report: &StatusReport) -> String {
    let listed = report.connections.len().saturating_sub(SHOWN_CONNECTIONS) as u64;
    match report.more_connections.saturating_add(listed) {
        0 => String::new(),
        more => format!("and {more} more connections\n"),
    }
}

fn drops(report: &StatusReport) -> Table {
    let mut table = new_table();
    table.set_header(["dropped", "now", "direction", "stage", "reason"]);
    for drop in &report.drops {
        let recent = report.recent.iter().flat_map(|recent| &recent.drops);
        let growth = total(recent.filter(|recent| recent.reason == drop.reason).map(|recent| recent.packets));
        let growth = match growth {
            0 => Cell::new(""),
            growth => Cell::new(format!("+{growth}")).fg(Color::Yellow),
        };
        table.add_row([
            Cell::new(drop.packets),
            growth,
            Cell::new(&drop.direction),
            Cell::new(&drop.stage),
            Cell::new(&drop.reason),
        ]);
    }
    table
}

fn shortened(list: &[String]) -> String {
    let mut lines: Vec<&str> = list.iter().take(SHOWN).map(String::as_str).collect();
    let more = format!("and {} more", list.len().saturating_sub(SHOWN));
    if list.len() > SHOWN {
        lines.push(&more);
    }
    if lines.is_empty() { "none".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
#[path = "details/tests.rs"]
mod tests;
