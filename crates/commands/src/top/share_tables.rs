//! The table of TUN queues, if there are several: it shows how they share the work.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Cell, Row, Table};
use weft_report::rate;

use super::app::{App, Histories};
use super::draw::coloured;
use super::history::History;

/// The number of lines reserved for the peers.
const PEER_LINES: u16 = 6;
/// The minimum height: the header and two queues.
const LEAST: u16 = 3;
/// Widths of the columns.
const NAME: u16 = 12;
const RATE: u16 = 12;
/// The minimum width of a history. A narrower history is left out.
const SHORTEST: u16 = 6;

/// Returns the height of the table, if queues and peers have `room` lines together.
pub(super) fn height(app: &App, room: u16) -> u16 {
    let wanted = match u16::try_from(app.queues.len()) {
        Ok(0 | 1) => return 0,
        Ok(queues) => queues.saturating_add(1),
        Err(_) => u16::MAX,
    };
    let height = wanted.min(room.saturating_sub(PEER_LINES));
    if height < LEAST { 0 } else { height }
}

/// Draws the queues. The last line counts those that do not fit.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App, area: Rect) {
    if area.height < LEAST {
        return;
    }
    let lines = usize::from(area.height) - 1;
    let shown = if app.queues.len() > lines { lines - 1 } else { app.queues.len() };
    // Four gaps of one column.
    let history = area.width.saturating_sub(NAME + 2 * RATE + 4) / 2;
    let history = if history < SHORTEST { 0 } else { history };
    // All queues have the same scale, so that their shares of the work can be compared.
    let peak = |direction: fn(&Histories) -> &History| {
        app.queues.iter().map(|queue| direction(queue).peak(history.into())).max().unwrap_or_default()
    };
    let peaks = (peak(|queue| &queue.inbound), peak(|queue| &queue.outbound));
    let row = |(number, queue): (usize, &Histories)| {
        let line = |history_of: &History, peak, colour| {
            Cell::from(history_of.line(history.into(), peak)).style(coloured(app, colour))
        };
        Row::new([
            Cell::from(format!("queue {number}")),
            Cell::from(rate(queue.inbound.last())),
            line(&queue.inbound, peaks.0, Color::Green),
            Cell::from(rate(queue.outbound.last())),
            line(&queue.outbound, peaks.1, Color::Blue),
        ])
    };
    let mut rows: Vec<Row<'_>> = app.queues.iter().enumerate().take(shown).map(row).collect();
    if shown < app.queues.len() {
        rows.push(Row::new([Cell::from(format!("and {} more", app.queues.len() - shown))]));
    }
    let widths = [NAME, RATE, history, RATE, history].map(Constraint::Length);
    let header = Row::new(["queue", "in", "", "out", ""]).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(header), area);
}
