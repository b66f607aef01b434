//! Formats a report as tables for people. `anstream` removes the colours if the output is not a terminal.

use std::fmt::Write as _;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use weft_report::finding::{self, Finding};
use weft_report::rules::SESSION_MS;
use weft_report::should_have_session;
use weft_report::{LimitReport, PeerReport, StatusReport};
use weft_report::{age, bucket_label, bytes, rate};

/// The maximum number of entries of a list that are shown; the rest are counted. `--json` has all of them.
const SHOWN: usize = 6;
/// The maximum number of peers that are shown.
const SHOWN_PEERS: usize = 100;

/// Formats the tables of an interface, and the findings.
pub(super) fn render(report: &StatusReport, findings: &[Finding]) -> String {
    let mut text = format!(
        "\x1b[1m{}\x1b[0m  up {}, weft {}, process {}\n",
        report.interface,
        age(report.uptime_ms),
        report.weft_version,
        report.pid
    );
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", interface(report));
    if report.packet_threads.len() > 1 {
        let _ = writeln!(text, "{}", packet_threads(report));
    }
    if report.tun.queues.len() > 1 {
        let _ = writeln!(text, "{}", tun_queues(report));
    }
    if !report.peers.is_empty() {
        let _ = writeln!(text, "{}", peers(report));
        if report.peers.len() > SHOWN_PEERS {
            let _ =
                writeln!(text, "and {} more peers; --json has them all", report.peers.len() - SHOWN_PEERS);
        }
    }
    if !report.drops.is_empty() {
        let _ = writeln!(text, "{}", drops(report));
    }
    text + &finding::lines(findings)
}

fn new_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .enforce_styling();
    table
}

fn interface(report: &StatusReport) -> Table {
    let mut table = new_table();
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
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
    if tun + udp > 0 {
        row("overflows", format!("{tun} packets of the TUN's queue, {udp} datagrams of the receive buffers"));
    }
    if report.tun.write_drops > 0 {
        row("undelivered", format!("{} packets that were written to the veth pair", report.tun.write_drops));
    }
    if report.udp.junk_dropped > 0 {
        row("junk", format!("{} datagrams that are no messages for it", report.udp.junk_dropped));
    }
    table
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
    let backing = if tun.backing == "veth" { "veth pair and packet socket, " } else { "" };
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
    format!("{} in {datagrams} datagrams{now}", bytes(total))
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
    let total: u64 = udp.batch_segments.iter().sum();
    if total > 0 {
        let mut sizes = String::from("\nsends of");
        let mut separator = "";
        for (bucket, &count) in udp.batch_segments.iter().enumerate() {
            if count > 0 {
                let percent = 100.0 * count as f64 / total as f64;
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
    limited(total, speed, &None)
}

/// Formats a total, and below it the rate, if it is known, and the limit, if there is one.
fn limited(total: u64, speed: Option<u64>, limit: &Option<LimitReport>) -> Cell {
    let mut lines = vec![bytes(total)];
    lines.extend(speed.map(rate));
    if let Some(limit) = limit {
        lines.push(format!("limit {}", rate(limit.bits_per_second / 8)));
        if limit.dropped_packets > 0 {
            lines.push(format!("{} dropped", limit.dropped_packets));
        }
    }
    Cell::new(lines.join("\n"))
}

fn peers(report: &StatusReport) -> Table {
    let mut table = new_table();
    let are_threads = report.packet_threads.len() > 1;
    let mut header = vec!["peer", "endpoint", "handshake", "received", "sent", "allowed IPs", "keepalive"];
    header.extend(are_threads.then_some("thread"));
    table.set_header(header);
    for peer in report.peers.iter().take(SHOWN_PEERS) {
        let mut row = peer_row(peer);
        let thread = || peer.packet_thread.map_or_else(|| "-".to_owned(), |number| number.to_string());
        row.extend(are_threads.then(|| Cell::new(thread())));
        table.add_row(row);
    }
    table
}

fn peer_row(peer: &PeerReport) -> Vec<Cell> {
    let name = match &peer.settings.friendly_name {
        Some(name) => format!("{name}\n{}", peer.public_key),
        None => peer.public_key.clone(),
    };
    let trying = if should_have_session(peer) { Color::Red } else { Color::Yellow };
    let handshake = match peer.latest_handshake_ms {
        Some(ms) if ms < SESSION_MS => Cell::new(format!("{} ago", age(ms))).fg(Color::Green),
        Some(ms) if peer.is_trying => Cell::new(format!("{} ago, trying", age(ms))).fg(trying),
        Some(ms) => Cell::new(format!("{} ago", age(ms))),
        None if peer.is_trying => Cell::new("none yet, trying").fg(trying),
        None => Cell::new("none yet").fg(Color::Yellow),
    };
    vec![
        Cell::new(name),
        Cell::new(peer.endpoint.as_deref().unwrap_or("not known")),
        handshake,
        limited(peer.rx_bytes, peer.rates.map(|rates| rates.rx_bytes_per_second), &peer.limit_from_peer),
        limited(peer.tx_bytes, peer.rates.map(|rates| rates.tx_bytes_per_second), &peer.limit_to_peer),
        Cell::new(shortened(&peer.allowed_ips)),
        Cell::new(peer.persistent_keepalive.map_or("off".to_owned(), |seconds| format!("{seconds} s"))),
    ]
}

fn drops(report: &StatusReport) -> Table {
    let mut table = new_table();
    table.set_header(["dropped", "now", "direction", "stage", "reason"]);
    for drop in &report.drops {
        let recent = report.recent.iter().flat_map(|recent| &recent.drops);
        let growth =
            recent.filter(|recent| recent.reason == drop.reason).map(|recent| recent.packets).sum::<u64>();
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
#[path = "table/tests.rs"]
mod tests;
