//! Draws the screen. Each part appears from a certain height on, so that small terminals show the most
//! important parts.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Sparkline, Wrap};
use weft_report::finding::{Finding, Level, wrapped};
use weft_report::{StatusReport, age, bucket_label, bytes, rate, total};

use super::app::{App, View};
use super::history::History;
use super::{peer_table, share_tables};
use crate::args::TOP_KEYS;
use crate::status::peer_lines;

/// The screen heights from which each part is shown.
const CHARTS_FROM: u16 = 24;
const RATES_FROM: u16 = 8;
const NUMBERS_FROM: u16 = 16;
const KEYS_FROM: u16 = 5;
/// The height of a chart with its frame.
const CHART_HEIGHT: u16 = 6;
/// The maximum number of findings that are shown.
const FINDINGS: usize = 3;

const KEYS: [&str; 6] = ["q end", "? keys", "/ find", "Enter peer", "jk choose", "nhrtRT sort"];
/// The indent of the numbers.
const LABEL: usize = 9;
/// Where the second column of the keys begins, and the width of both.
const SECOND_KEYS: usize = 37;
const KEYS_WIDTH: u16 = 65;

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    let height = area.height;
    let findings: Vec<Line<'_>> = findings(app, area.width.into());
    let rates = match height {
        CHARTS_FROM.. => CHART_HEIGHT,
        RATES_FROM.. => 2,
        _ => 0,
    };
    let is_of_interface = app.view == View::Interface;
    let numbers = app.report.as_ref().filter(|_| height >= NUMBERS_FROM && is_of_interface);
    let number_lines = numbers.map_or_else(Vec::new, |report| numbers_of(report, app, area.width.into()));
    let numbers = number_lines.len() as u16;
    let said = if height >= NUMBERS_FROM { findings.len() as u16 } else { findings.len().min(1) as u16 };
    let said = if height >= KEYS_FROM { said } else { 0 };
    let keys = u16::from(height >= KEYS_FROM);
    let rest = height.saturating_sub(1 + rates + numbers + said + keys);
    // No further than the last one, with the header: what is below stands close to it.
    let peers = u16::try_from(app.order.len() + 1).unwrap_or(u16::MAX);
    // Several packet threads keep a line.
    let peers = peers.min(rest.saturating_sub(u16::from(numbers > 0 && app.threads.len() > 1)));
    let peers = if is_of_interface { peers } else { rest };
    let [threads, queues] = if numbers > 0 { share_tables::heights(app, rest - peers) } else { [0; 2] };
    let [
        title_area,
        rates_area,
        peers_area,
        numbers_area,
        threads_area,
        queues_area,
        _,
        findings_area,
        keys_area,
    ] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(rates),
        Constraint::Length(peers),
        Constraint::Length(numbers),
        Constraint::Length(threads),
        Constraint::Length(queues),
        Constraint::Min(0),
        Constraint::Length(said),
        Constraint::Length(keys),
    ])
    .areas(area);
    frame.render_widget(title(app, area.width.into()), title_area);
    draw_rates(frame, app, rates_area);
    match (&app.view, &app.report) {
        (View::Help, _) => frame.render_widget(Paragraph::new(help(area.width)), peers_area),
        (View::Peer, Some(report)) => {
            let text =
                app.peer().map_or_else(|| "this peer is gone".to_owned(), |peer| peer_lines(peer, report));
            frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), peers_area);
        }
        (View::Interface, Some(_)) => {
            frame.render_widget(Paragraph::new(number_lines), numbers_area);
            share_tables::draw_threads(frame, app, threads_area);
            share_tables::draw_queues(frame, app, queues_area);
            peer_table::draw(frame, app, peers_area);
        }
        (_, None) => {}
    }
    frame.render_widget(Paragraph::new(findings), findings_area);
    let keys = match &app.view {
        View::Interface if app.is_typing => format!("/{}▏  Enter keep  Esc all peers", app.filter),
        View::Interface if !app.filter.is_empty() => format!("/{}  Esc all peers  / another", app.filter),
        View::Interface => fitting(KEYS, area.width.into()),
        View::Peer | View::Help => "Esc back  q end".to_owned(),
    };
    frame.render_widget(Line::from(keys).style(Style::new().add_modifier(Modifier::DIM)), keys_area);
}

/// Joins the first of these parts that fit a line of `width` columns.
fn fitting<'a>(parts: impl IntoIterator<Item = &'a str>, width: usize) -> String {
    let mut text = String::new();
    for part in parts {
        let gap = if text.is_empty() { "" } else { "  " };
        if text.chars().count() + gap.len() + part.chars().count() > width {
            break;
        }
        text = text + gap + part;
    }
    text
}

/// Returns what the keys do, in two columns where there is room.
fn help(width: u16) -> String {
    if width >= KEYS_WIDTH {
        return TOP_KEYS.to_owned();
    }
    let columns = TOP_KEYS.lines().map(|line| line.split_at(SECOND_KEYS));
    let (first, second): (Vec<_>, Vec<_>) =
        columns.map(|(first, second)| (first.trim_end().to_owned(), format!("  {second}"))).unzip();
    [first, second].concat().join("\n")
}

fn title(app: &App, width: usize) -> Line<'static> {
    let mut parts = Vec::new();
    if let Some(report) = &app.report {
        let peers = match (app.order.len(), report.peers.len()) {
            (shown, count) if shown < count => format!("{shown} of {count} peers"),
            (_, 1) => "1 peer".to_owned(),
            (_, count) => format!("{count} peers"),
        };
        parts = vec![
            format!("up {}", age(report.uptime_ms)),
            peers,
            format!("by {}{}", app.sort.label(), if app.is_reversed { ", reversed" } else { "" }),
            format!("port {}", report.listen_port),
            format!("MTU {}", report.mtu),
        ];
    }
    let name = Span::from(app.name.clone()).style(Style::new().add_modifier(Modifier::BOLD));
    let mut spans = vec![name];
    spans.extend(app.peer().map(|peer| Span::from(format!("  {}", peer.label()))));
    if app.is_paused {
        spans.push(Span::from("  paused").style(app.coloured(Color::Yellow)));
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let text = fitting(parts.iter().map(String::as_str), width.saturating_sub(used + 2));
    spans.push(Span::from(format!("  {text}")));
    Line::from(spans)
}

fn draw_rates(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let of_peer = app.peer().and_then(|peer| app.peers.get(&peer.public_key));
    let (inbound, outbound) =
        of_peer.map_or((&app.inbound, &app.outbound), |peer| (&peer.inbound, &peer.outbound));
    let directions = [("in", inbound, Color::Green), ("out", outbound, Color::Blue)];
    if area.height < CHART_HEIGHT {
        let rows = Layout::vertical([Constraint::Length(1); 2]).split(area);
        for ((name, history, colour), &row) in directions.into_iter().zip(rows.iter()) {
            if row.height > 0 {
                frame.render_widget(rate_line(app, name, history, colour, row.width), row);
            }
        }
        return;
    }
    let columns = Layout::horizontal([Constraint::Fill(1); 2]).split(area);
    for ((name, history, colour), &column) in directions.into_iter().zip(columns.iter()) {
        let width = usize::from(column.width.saturating_sub(2));
        let title = format!(" {name} {}, peak {} ", rate(history.last()), rate(history.peak(width)));
        let is_short = title.chars().count() > width;
        let title = if is_short { format!(" {name} {} ", rate(history.last())) } else { title };
        let data = history.padded(width);
        let chart = Sparkline::default()
            .block(Block::bordered().title(title))
            .style(app.coloured(colour))
            .max(history.peak(width).max(1))
            .data(&data);
        frame.render_widget(chart, column);
    }
}

fn rate_line(app: &App, name: &str, history: &History, colour: Color, width: u16) -> Line<'static> {
    let text = format!("{name:<3} {:>12} ", rate(history.last()));
    let room = usize::from(width).saturating_sub(text.chars().count());
    let line = history.line(room, history.peak(room));
    Line::from(vec![Span::from(text), Span::from(line).style(app.coloured(colour))])
}

/// Formats what is known of batches, queues and drops, in lines of at most `width` columns.
fn numbers_of(report: &StatusReport, app: &App, width: usize) -> Vec<Line<'static>> {
    let queues = &report.queues;
    let recent = report.recent.clone().unwrap_or_default();
    let sends = total(recent.batch_segments);
    let mut batches = String::from("batches ");
    for (bucket, &count) in recent.batch_segments.iter().enumerate().filter(|(_, count)| **count > 0) {
        batches += &format!(" {}: {:.0} %", bucket_label(bucket), 100.0 * count as f64 / sends as f64);
    }
    if sends == 0 {
        batches += " nothing is sent";
    }
    let waiting = format!(
        "waiting  {} for sessions, {} to encrypt, {} batches and {} handshakes to send",
        bytes(queues.staged_bytes),
        bytes(queues.read_ahead_bytes as u64),
        queues.transmit_waiting,
        queues.control_waiting,
    );
    let mut drops = format!("drops    {}, {}/s now", report.dropped(), app.drops.last());
    for drop in &recent.drops {
        drops += &format!("  {} +{}", drop.reason, drop.packets);
    }
    let plain = Style::new();
    let of_drops = if recent.drops.is_empty() { plain } else { app.coloured(Color::Yellow) };
    let mut lines = Vec::new();
    for (text, style) in [(batches, plain), (waiting, plain), (drops, of_drops)] {
        let (label, rest) = text.split_at(LABEL);
        let text = format!("{label}{}", wrapped(rest, LABEL, Some(width)));
        lines.extend(text.lines().map(|line| Line::from(line.to_owned()).style(style)));
    }
    lines
}

/// Formats the findings, each in a line of at most `width` columns.
fn findings(app: &App, width: usize) -> Vec<Line<'static>> {
    let line = |level: Level, text: String| {
        let colour = match level {
            Level::Problem => Color::Red,
            Level::Warning => Color::Yellow,
            _ => Color::Cyan,
        };
        let label = format!("{}: ", level.label());
        let room = width.saturating_sub(label.len());
        let text = if text.chars().count() <= room {
            text
        } else {
            text.chars().take(room.saturating_sub(1)).chain(['…']).collect()
        };
        Line::from(vec![Span::from(label).style(app.coloured(colour)), Span::from(text)])
    };
    let mut lines: Vec<Line<'static>> =
        app.trouble.iter().map(|trouble| line(Level::Problem, trouble.clone())).collect();
    let serious = app.findings.iter().filter(|finding| finding.level >= Level::Warning);
    lines.extend(serious.take(FINDINGS - lines.len()).map(|Finding { level, about, says, .. }| {
        line(*level, about.as_ref().map_or_else(|| says.clone(), |about| format!("{about}: {says}")))
    }));
    lines
}

#[cfg(test)]
#[path = "draw/tests.rs"]
mod tests;
