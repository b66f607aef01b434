//! The report as text: its tables, the comparisons, and the conditions. No other file writes a table.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table as Grid, presets};

use super::{Comparison, Figure, Report, Row, Table, distinct};
use crate::stats::Summary;

/// Number of busy or stolen cores above which figures are doubtful.
const BUSY: f64 = 0.2;
/// More figures than this stand below each other, with a column for each row, if there are fewer rows.
const WIDE: usize = 9;

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text: String = self.tables.iter().map(Table::text).collect();
        if !self.comparisons.is_empty() {
            text += &comparisons(&self.comparisons);
        }
        text += "Medians, in brackets the range; ";
        for (name, value) in &self.settings {
            let _ = write!(text, "{name} {value}; ");
        }
        let machine = &self.machine;
        let _ = writeln!(text, "{} × {}; Linux {}.", machine.cores, machine.processor, machine.kernel);
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        let (before, stolen) = (self.busy_cores_before, self.stolen_cores);
        if before > BUSY {
            let _ = writeln!(
                text,
                "note: {before:.1} cores were busy with other work before the first measurement: speeds and CPU time \
                 are worth little, ratios somewhat more."
            );
        }
        if stolen > BUSY {
            let _ = writeln!(
                text,
                "note: the host of this virtual machine gave {stolen:.1} of its cores to others meanwhile."
            );
        }
        text
    }
}

impl Table {
    fn text(&self) -> String {
        let figures = distinct(self.rows.iter().flat_map(Row::figures));
        let cell = |row: &Row, figure: &Figure| match row.summary(*figure) {
            Some(summary) => spread(*figure, summary),
            None => "–".to_owned(),
        };
        let mut grid;
        if figures.len() > WIDE && self.rows.len() <= figures.len() / 2 + 1 {
            let sides = self.rows.iter().map(|row| match row.case == self.title {
                true => row.side.clone(),
                false => format!("{} {}", row.case, row.side).trim().to_owned(),
            });
            grid = empty([self.title.clone()].into_iter().chain(sides), 1);
            for figure in &figures {
                let cells = self.rows.iter().map(|row| cell(row, figure));
                grid.add_row([figure.title.to_owned()].into_iter().chain(cells));
            }
        } else {
            let titles = figures.iter().map(|figure| figure.title.to_owned());
            let side = self.rows.iter().any(|row| !row.side.is_empty()).then(String::new);
            let labels = 1 + usize::from(side.is_some());
            grid = empty([self.title.clone()].into_iter().chain(side).chain(titles), labels);
            let mut before = None;
            for row in &self.rows {
                let case = if before == Some(&row.case) { String::new() } else { row.case.clone() };
                let side = (labels > 1).then(|| row.side.clone());
                let cells = figures.iter().map(|figure| cell(row, figure));
                grid.add_row([case].into_iter().chain(side).chain(cells));
                before = Some(&row.case);
            }
        }
        format!("{grid}\n")
    }
}

/// Creates an empty table. The columns after the first `left_aligned` are right-aligned, for numbers.
fn empty(header: impl IntoIterator<Item = String>, left_aligned: usize) -> Grid {
    let mut grid = Grid::new();
    grid.force_no_tty().load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners());
    grid.set_header(header.into_iter().collect::<Vec<_>>());
    for column in grid.column_iter_mut().skip(left_aligned) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    grid
}

/// Formats a median, with its range unless all values are equal.
fn spread(figure: Figure, summary: Summary) -> String {
    let [median, lowest, highest] =
        [summary.median, summary.lowest, summary.highest].map(|value| figure.format(value));
    if lowest == highest { median } else { format!("{median} ({lowest}–{highest})") }
}

fn comparisons(all: &[Comparison]) -> String {
    let header = ["case", "figure", "of", "by that of", "ratio", "(by round)", "wanted", "holds"];
    let mut grid = empty(header.map(str::to_owned), 4);
    let mut before = None;
    for comparison in all {
        let Comparison { case, figure, ours, theirs, ratio, value, wanted, holds } = comparison;
        let (ratio, range) = match (ratio, value) {
            (Some(Summary { median, lowest, highest }), _) => {
                (format!("{median:.2}×"), format!("({lowest:.2}–{highest:.2})"))
            }
            (None, Some(value)) if theirs.is_none() => (spread(*figure, *value), String::new()),
            (None, _) => ("–".to_owned(), String::new()),
        };
        grid.add_row([
            if before == Some(case) { String::new() } else { case.clone() },
            figure.title.to_owned(),
            ours.clone(),
            theirs.clone().unwrap_or_default(),
            ratio,
            range,
            wanted.map_or_else(String::new, |wanted| wanted.text(*figure)),
            holds.map_or("", |holds| if holds { "✓ yes" } else { "✗ no" }).to_owned(),
        ]);
        before = Some(case);
    }
    let targets = || all.iter().filter(|comparison| comparison.wanted.is_some());
    let count = |holds| targets().filter(|comparison| comparison.holds == holds).count();
    let (all, held, open) = (targets().count(), count(Some(true)), count(None));
    let mut text = format!("{grid}\n");
    if all > 0 {
        let open = match open {
            0 => String::new(),
            _ => format!("; {open} cannot be judged without the figures of the others"),
        };
        let _ = writeln!(text, "{held} of {all} targets hold{open}.");
    }
    text
}
