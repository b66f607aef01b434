//! A look at an interface: a line for it, the findings, and a line for each peer. Where the terminal is too
//! narrow for lines, each peer is a block, as wg(8) prints it. No key, address or name is ever broken.

use std::fmt::Write as _;
use std::time::SystemTime;

use comfy_table::{Cell, Color, Table, presets};
use weft_config::Expiry;
use weft_report::rules::SESSION_MS;
use weft_report::{PeerReport, StatusReport};
use weft_report::{age, bytes, finding, rate, should_have_session};

/// The maximum number of peers that are shown.
pub(crate) const SHOWN_PEERS: usize = 100;
/// The maximum number of entries of a list that are shown; `-v` has more of them.
const SHOWN: usize = 2;
/// The least number of columns for a line a peer.
const WIDE: usize = 100;

/// Formats an interface for a terminal with this many columns; none: there is no terminal, and lines may be
/// of any length.
pub(super) fn render(report: &StatusReport, width: Option<usize>) -> String {
    let name = format!("\x1b[1m{}\x1b[0m  ", report.interface);
    let mut text = wrapped(name, report.interface.len() + 2, facts(report), width);
    text += &finding::lines(&report.findings, width);
    text += &peers(report, width);
    text
}

/// Returns the facts about the interface.
fn facts(report: &StatusReport) -> Vec<String> {
    let mut facts = vec![format!("up {}", age(report.uptime_ms))];
    facts.extend(first(&report.addresses));
    facts.push(format!("port {}", report.listen_port));
    if let Some(recent) = &report.recent {
        facts.push(format!("{} in", rate(recent.rates.rx_bytes_per_second)));
        facts.push(format!("{} out", rate(recent.rates.tx_bytes_per_second)));
    }
    // The usual file goes without saying.
    let usual = format!("/etc/wireguard/{}.conf", report.interface);
    facts.extend(report.file.iter().filter(|file| **file != usual).map(|file| format!("file {file}")));
    facts.extend(report.members.iter().map(|process| format!("used by process {process}")));
    match (report.connections.len() as u64).saturating_add(report.more_connections) {
        0 => {}
        1 => facts.push("1 connection".to_owned()),
        all => facts.push(format!("{all} connections")),
    }
    facts.push(match (&report.public_key, report.peers.len()) {
        (None, _) => "no private key".to_owned(),
        (_, 0) => "no peers".to_owned(),
        (_, all) => {
            let connected = report.peers.iter().filter(|peer| has_session(peer)).count();
            format!("{connected} of {all} {} connected", if all == 1 { "peer" } else { "peers" })
        }
    });
    facts
}

/// Joins facts to lines that fit, after a head that takes `taken` columns.
fn wrapped(head: String, taken: usize, facts: Vec<String>, width: Option<usize>) -> String {
    const INDENT: usize = 2;
    let (mut text, mut column) = (head, taken);
    let last = facts.len().saturating_sub(1);
    for (number, fact) in facts.into_iter().enumerate() {
        let comma = if number == last { "" } else { ", " };
        let length = fact.chars().count() + comma.trim_end().len();
        if number > 0 && width.is_some_and(|width| column + length > width) {
            text.truncate(text.trim_end().len());
            let _ = write!(text, "\n{:INDENT$}", "");
            column = INDENT;
        }
        text = text + &fact + comma;
        column += length + 1;
    }
    text + "\n"
}

fn peers(report: &StatusReport, width: Option<usize>) -> String {
    let mut peers: Vec<&PeerReport> = report.peers.iter().collect();
    // Those with a session are as in the file, so that a look after the other shows them in one order.
    peers.sort_by_key(|peer| match peer.latest_handshake_ms {
        Some(ms) if ms < SESSION_MS => 0,
        other => other.unwrap_or(u64::MAX),
    });
    let shown = &peers[..peers.len().min(SHOWN_PEERS)];
    let table = table(shown);
    let is_too_wide = |width| width < WIDE || table.lines().any(|line| columns(line) > width);
    let mut text = if width.is_some_and(is_too_wide) { blocks(shown, width) } else { table };
    text += &more(peers.len());
    text
}

/// Says how many peers are not shown.
pub(crate) fn more(peers: usize) -> String {
    match peers.saturating_sub(SHOWN_PEERS) {
        0 => String::new(),
        more => format!("and {more} more peers; --json has them all\n"),
    }
}

/// The number of characters that are no part of an escape sequence.
fn columns(line: &str) -> usize {
    anstream::adapter::strip_str(line).to_string().chars().count()
}

fn table(peers: &[&PeerReport]) -> String {
    if peers.is_empty() {
        return String::new();
    }
    let rates = peers.iter().any(|peer| [false, true].iter().any(|received| speed(peer, *received) > 0));
    let mut table = Table::new();
    table.load_style(presets::NOTHING).enforce_styling();
    let mut header = vec!["peer", "endpoint", "handshake"];
    header.extend(rates.then_some(["in", "out"]).into_iter().flatten());
    header.extend(["received", "sent", "allowed IPs"]);
    let ends = peers.iter().any(|peer| peer.settings.expires.is_some());
    header.extend(ends.then_some("ends"));
    table.set_header(header);
    for peer in peers {
        let (handshake, colour) = handshake(peer);
        let handshake = Cell::new(handshake);
        let mut row = vec![
            Cell::new(peer.label()),
            Cell::new(endpoint(peer)),
            match colour {
                Some(colour) => handshake.fg(colour),
                None => handshake,
            },
        ];
        if rates {
            row.extend([true, false].map(|received| Cell::new(rate(speed(peer, received)))));
        }
        row.extend([peer.rx_bytes, peer.tx_bytes].map(|total| Cell::new(bytes(total))));
        row.push(Cell::new(first(&peer.allowed_ips).join(", ")));
        row.extend(ends.then(|| Cell::new(peer.settings.expires.map(left).unwrap_or_default())));
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn blocks(peers: &[&PeerReport], width: Option<usize>) -> String {
    let mut text = String::new();
    for peer in peers {
        let label = peer.label();
        let mut where_it_is = vec![endpoint(peer).to_owned()];
        where_it_is.extend(first(&peer.allowed_ips));
        where_it_is.extend(peer.settings.expires.map(|expiry| format!("ends {}", left(expiry))));
        text += &wrapped(format!("\x1b[1m{label}\x1b[0m  "), label.chars().count() + 2, where_it_is, width);
        let amount = |total: u64, received: bool, way: &str| match speed(peer, received) {
            0 => format!("{} {way}", bytes(total)),
            speed => format!("{} {way} ({})", bytes(total), rate(speed)),
        };
        let (handshake, colour) = handshake(peer);
        let length = handshake.chars().count() + 4;
        let amounts = vec![amount(peer.rx_bytes, true, "received"), amount(peer.tx_bytes, false, "sent")];
        text += &wrapped(format!("  {}, ", painted(&handshake, colour)), length, amounts, width);
    }
    text
}

fn painted(text: &str, colour: Option<Color>) -> String {
    match colour {
        Some(Color::Green) => format!("\x1b[32m{text}\x1b[0m"),
        Some(Color::Yellow) => format!("\x1b[33m{text}\x1b[0m"),
        Some(Color::Red) => format!("\x1b[31m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

fn has_session(peer: &PeerReport) -> bool {
    peer.latest_handshake_ms.is_some_and(|ms| ms < SESSION_MS)
}

/// Says when the last handshake was, and whether one is under way.
pub(super) fn handshake(peer: &PeerReport) -> (String, Option<Color>) {
    let trying = Some(if should_have_session(peer) { Color::Red } else { Color::Yellow });
    match peer.latest_handshake_ms {
        Some(ms) if ms < SESSION_MS => (format!("{} ago", age(ms)), Some(Color::Green)),
        Some(ms) if peer.is_trying => (format!("{} ago, trying", age(ms)), trying),
        Some(ms) => (format!("{} ago", age(ms)), None),
        None if peer.is_trying => ("none yet, trying".to_owned(), trying),
        None => ("none yet".to_owned(), Some(Color::Yellow)),
    }
}

/// Says when a peer ends, and how long that is from now.
pub(super) fn expiry(expiry: Expiry) -> String {
    format!("{expiry} ({})", left(expiry))
}

/// Returns how long a peer has until its end.
pub(crate) fn left(expiry: Expiry) -> String {
    let rest = expiry.until(SystemTime::now()).as_millis();
    format!("in {}", age(u64::try_from(rest).unwrap_or(u64::MAX)))
}

pub(super) fn endpoint(peer: &PeerReport) -> &str {
    peer.endpoint.as_deref().unwrap_or("not known")
}

fn speed(peer: &PeerReport, received: bool) -> u64 {
    peer.rates.map_or(0, |rates| if received { rates.rx_bytes_per_second } else { rates.tx_bytes_per_second })
}

/// The first entries of a list, and how many more there are.
pub(crate) fn first(list: &[String]) -> Vec<String> {
    let mut few: Vec<String> = list.iter().take(SHOWN).cloned().collect();
    if list.len() > SHOWN {
        few.push(format!("{} more", list.len() - SHOWN));
    }
    few
}

#[cfg(test)]
#[path = "glance/tests.rs"]
mod tests;
