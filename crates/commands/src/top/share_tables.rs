//! The tables of packet threads and of TUN queues, where there are several: they show how these share the
//! work.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use weft_report::rate;

use super::app::{App, Histories};
use super::history::History;

/// The minimum height: the header and two threads or queues. Below it there is a line about all of them.
const LEAST: u16 = 3;
/// Widths of the columns.
const NAME: u16 = 12;
const RATE: u16 = 12;
const PEERS: u16 = 6;
const BUSY: u16 = 5;
/// The minimum width of a history. A narrower history is left out.
const SHORTEST: u16 = 6;

/// Returns the heights of the tables of threads and queues in the lines that the peers leave. A single line
/// goes to the threads.
pub(super) fn heights(app: &App, room: u16) -> [u16; 2] {
    let without_queues = room.saturating_sub(u16::from(app.queues.len() > 1)).max(room.min(1));
    let threads = height(app.threads.len(), without_queues);
    [threads, height(app.queues.len(), room - threads)]
}

fn height(count: usize, room: u16) -> u16 {
    let wanted = match u16::try_from(count) {
        Ok(0 | 1) => return 0,
        Ok(count) => count.saturating_add(1),
        Err(_) => u16::MAX,
    };
    let height = wanted.min(room);
    if height < LEAST { height.min(1) } else { height }
}

/// Draws the packet threads: a full height of the history is all of the time.
pub(super) fn draw_threads(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let Some(report) = &app.report else { return };
    if area.height < LEAST {
        let busiest = app.threads.iter().map(History::last).max().unwrap_or_default() / 10;
        let line = format!("threads  {}, the busiest {busiest} %", app.threads.len());
        return frame.render_widget(Line::from(line), area);
    }
    // Three gaps of one column.
    let history = history_width(area.width.saturating_sub(NAME + PEERS + BUSY + 3));
    let row = |number: usize| {
        let busy = &app.threads[number];
        [
            Cell::from(format!("thread {number}")),
            Cell::from(report.packet_threads[number].peers.to_string()),
            Cell::from(format!("{} %", busy.last() / 10)),
            Cell::from(busy.line(history.into(), 1000)).style(app.coloured(Color::Cyan)),
        ]
    };
    let columns = [("thread", NAME), ("peers", PEERS), ("busy", BUSY), ("", history)];
    draw(frame, area, columns, app.threads.len(), row);
}

pub(super) fn draw_queues(frame: &mut Frame<'_>, app: &App, area: Rect) {
    if area.height < LEAST {
        let most = |direction: fn(&Histories) -> &History| {
            rate(app.queues.iter().map(|queue| direction(queue).last()).max().unwrap_or_default())
        };
        let (inbound, outbound) = (most(|queue| &queue.inbound), most(|queue| &queue.outbound));
        let line = format!("queues   {}, the fullest {inbound} in, {outbound} out", app.queues.len());
        return frame.render_widget(Line::from(line), area);
    }
    // Four gaps of one column.
    let history = history_width(area.width.saturating_sub(NAME + 2 * RATE + 4) / 2);
    // All queues have the same scale, so that their shares of the work can be compared.
    let peak = |direction: fn(&Histories) -> &History| {
        app.queues.iter().map(|queue| direction(queue).peak(history.into())).max().unwrap_or_default()
    };
    let peaks = (peak(|queue| &queue.inbound), peak(|queue| &queue.outbound));
    let row = |number: usize| {
        let queue = &app.queues[number];
        let line = |history_of: &History, peak, colour| {
            Cell::from(history_of.line(history.into(), peak)).style(app.coloured(colour))
        };
        [
            Cell::from(format!("queue {number}")),
            Cell::from(rate(queue.inbound.last())),
            line(&queue.inbound, peaks.0, Color::Green),
            Cell::from(rate(queue.outbound.last())),
            line(&queue.outbound, peaks.1, Color::Blue),
        ]
    };
    let columns = [("queue", NAME), ("in", RATE), ("", history), ("out", RATE), ("", history)];
    draw(frame, area, columns, app.queues.len(), row);
}

fn history_width(room: u16) -> u16 {
    if room < SHORTEST { 0 } else { room }
}

/// Draws a table of `count` lines, with the heading and the width of each column. The last line counts those
/// that do not fit.
fn draw<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: [(&str, u16); N],
    count: usize,
    row: impl Fn(usize) -> [Cell<'static>; N],
) {
    let lines = usize::from(area.height) - 1;
    let shown = if count > lines { lines - 1 } else { count };
    let mut rows: Vec<Row<'_>> = (0..shown).map(|number| Row::new(row(number))).collect();
    if shown < count {
        rows.push(Row::new([Cell::from(format!("and {} more", count - shown))]));
    }
    let header = Row::new(columns.map(|(name, _)| name)).style(Style::new().add_modifier(Modifier::BOLD));
    let widths = columns.map(|(_, width)| Constraint::Length(width));
    frame.render_widget(Table::new(rows, widths).header(header), area);
}
