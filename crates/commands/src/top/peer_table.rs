//! The table of peers, one line each, with as many columns as fit.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use weft_report::rules::SESSION_MS;
use weft_report::{LimitReport, PeerReport, age, bytes, rate, should_have_session};

use super::app::{App, Histories};
use crate::status::left;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Peer,
    Handshake,
    Thread,
    RateIn,
    LimitIn,
    HistoryIn,
    RateOut,
    LimitOut,
    HistoryOut,
    Endpoint,
    TotalIn,
    TotalOut,
    Staged,
    Ends,
}

use Column::*;

/// The screen width from which the limits are shown.
const LIMITS_FROM: u16 = 80;
/// The width of the two columns with limits. If they are shown, the columns of wider screens need this much
/// more width.
const LIMITS_WIDTH: u16 = 26;

/// The screen width from which the packet thread of each peer is shown, if there are several.
const THREAD_FROM: u16 = 88;
/// The additional width that the columns of wider screens need then.
const THREAD_WIDTH: u16 = 7;

/// The screen width from which the end of each peer is shown, if one has an end.
const ENDS_FROM: u16 = 70;
/// The additional width that the columns of wider screens need then.
const ENDS_WIDTH: u16 = 13;

/// The columns from left to right: the screen width from which the column is shown if no peer is limited and
/// there is one packet thread, the width of the column, and its heading.
const COLUMNS: [(Column, u16, u16, &str); 14] = [
    (Peer, 0, 12, "peer"),
    (Handshake, 54, 12, "handshake"),
    (Thread, THREAD_FROM, THREAD_WIDTH - 1, "thread"),
    (Ends, ENDS_FROM, ENDS_WIDTH - 1, "ends"),
    (RateIn, 28, 12, "in"),
    (LimitIn, LIMITS_FROM, 12, "limit"),
    (HistoryIn, 80, 12, ""),
    (RateOut, 41, 12, "out"),
    (LimitOut, LIMITS_FROM, 12, "limit"),
    (HistoryOut, 80, 12, ""),
    (TotalIn, 104, 10, "total in"),
    (TotalOut, 104, 10, "total out"),
    (Endpoint, 127, 22, "endpoint"),
    (Staged, 140, 10, "waiting"),
];

/// Draws the peers that fit, including the selected peer.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    if area.height == 0 {
        return;
    }
    // If there is little room, the header is left out, not the peers.
    let has_header = area.height > 2 || usize::from(area.height) > app.order.len();
    let lines = usize::from(area.height) - usize::from(has_header);
    // The last line counts those that do not fit.
    let hidden = app.order.len().saturating_sub(lines);
    let has_more = hidden > 0 && lines > 3;
    let lines = lines - usize::from(has_more);
    let selected = app.selected_line();
    app.offset = app.offset.min(selected).max((selected + 1).saturating_sub(lines));
    app.offset = app.offset.min(app.order.len().saturating_sub(lines));
    let Some(report) = &app.report else { return };
    let are_limits = report.peers.iter().any(is_limited);
    let are_ends = report.peers.iter().any(|peer| peer.settings.expires.is_some());
    let are_threads = report.packet_threads.len() > 1;
    let needed = |column: Column, from: u16| {
        let limits = if are_limits && from >= LIMITS_FROM { LIMITS_WIDTH } else { 0 };
        let thread = if are_threads && from > THREAD_FROM { THREAD_WIDTH } else { 0 };
        let ends = if are_ends && from > ENDS_FROM { ENDS_WIDTH } else { 0 };
        match column {
            LimitIn | LimitOut => from + ends,
            _ => from + limits + thread + ends,
        }
    };
    let columns: Vec<_> = COLUMNS
        .iter()
        .filter(|(column, from, ..)| match column {
            LimitIn | LimitOut if !are_limits => false,
            Thread if !are_threads => false,
            Ends if !are_ends => false,
            _ => area.width >= needed(*column, *from),
        })
        .collect();
    let nothing = Histories::default();
    let rows = app.order.iter().enumerate().skip(app.offset).take(lines).map(|(line, &place)| {
        let peer = &report.peers[place];
        let history = app.peers.get(&peer.public_key).unwrap_or(&nothing);
        let cells = columns.iter().map(|(column, _, width, _)| cell(app, *column, *width, peer, history));
        let style =
            if line == selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        Row::new(cells).style(style)
    });
    let widths = columns.iter().map(|(column, _, width, _)| match column {
        Peer => Constraint::Fill(1),
        _ => Constraint::Length(*width),
    });
    let mut table = Table::new(rows, widths);
    if has_header {
        let header = columns.iter().map(|(_, _, _, name)| *name);
        table = table.header(Row::new(header).style(Style::new().add_modifier(Modifier::BOLD)));
    }
    frame.render_widget(table, area);
    if has_more {
        let last = Rect { y: area.bottom() - 1, height: 1, ..area };
        frame.render_widget(Line::from(format!("and {} more peers: j and k go to them", hidden + 1)), last);
    }
}

fn cell(app: &App, column: Column, width: u16, peer: &PeerReport, history: &Histories) -> Cell<'static> {
    let rates = peer.rates.unwrap_or_default();
    let width = usize::from(width);
    match column {
        Peer => Cell::from(peer.label()),
        Handshake => handshake(app, peer),
        Thread => Cell::from(peer.packet_thread.map_or_else(String::new, |number| number.to_string())),
        RateIn => Cell::from(rate(rates.rx_bytes_per_second)),
        RateOut => Cell::from(rate(rates.tx_bytes_per_second)),
        LimitIn => Cell::from(limit(&peer.limit_from_peer)),
        LimitOut => Cell::from(limit(&peer.limit_to_peer)),
        HistoryIn => {
            let line = history.inbound.line(width, history.inbound.peak(width));
            Cell::from(line).style(app.coloured(Color::Green))
        }
        HistoryOut => {
            let line = history.outbound.line(width, history.outbound.peak(width));
            Cell::from(line).style(app.coloured(Color::Blue))
        }
        Endpoint => Cell::from(peer.endpoint.clone().unwrap_or_else(|| "not known".to_owned())),
        TotalIn => Cell::from(bytes(peer.rx_bytes)),
        TotalOut => Cell::from(bytes(peer.tx_bytes)),
        Staged => Cell::from(bytes(peer.staged_bytes)),
        Ends => Cell::from(peer.settings.expires.map(left).unwrap_or_default()),
    }
}

fn is_limited(peer: &PeerReport) -> bool {
    peer.limit_to_peer.is_some() || peer.limit_from_peer.is_some()
}

/// Formats a limit in the unit of the rates; empty if there is none.
fn limit(limit: &Option<LimitReport>) -> String {
    limit.as_ref().map_or_else(String::new, |limit| rate(limit.bits_per_second / 8))
}

fn handshake(app: &App, peer: &PeerReport) -> Cell<'static> {
    let trying = if should_have_session(peer) { Color::Red } else { Color::Yellow };
    let (text, colour) = match peer.latest_handshake_ms {
        Some(ms) if ms < SESSION_MS => (age(ms), Color::Green),
        Some(ms) if peer.is_trying => (age(ms), trying),
        Some(ms) => (age(ms), Color::Reset),
        None if peer.is_trying => ("trying".to_owned(), trying),
        None => ("none yet".to_owned(), Color::Yellow),
    };
    Cell::from(text).style(app.coloured(colour))
}
