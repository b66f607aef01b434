//! What all reports share: JSON or text, tables, figures with their range, and notes about the machine.

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::stats::Summary;

/// Number of busy or stolen cores above which figures are doubtful.
pub(crate) const BUSY: f64 = 0.2;

/// Prints a report on standard output, as JSON or as `text` has it.
pub(crate) fn print<R: Serialize>(report: &R, json: bool, text: impl FnOnce(&R) -> String) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{}", text(report));
    }
    Ok(())
}

/// Returns an error if measurements failed.
pub(crate) fn check(failed: usize) -> Result<()> {
    ensure!(failed == 0, "{failed} of the measurements failed: see the notes of the report");
    Ok(())
}

/// Creates an empty table. The columns after the first `left_aligned` are right-aligned, for numbers.
pub(crate) fn table(header: impl IntoIterator<Item = impl Into<String>>, left_aligned: usize) -> Table {
    let mut table = Table::new();
    table.force_no_tty().load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(header.into_iter().map(Into::into).collect::<Vec<String>>());
    for column in table.column_iter_mut().skip(left_aligned) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Formats a median, with its range unless all values are equal.
pub(crate) fn spread(summary: &Summary, digits: usize) -> String {
    let Summary { median, lowest, highest } = summary;
    if lowest == highest {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({lowest:.digits$}–{highest:.digits$})")
}

/// Returns the lines of notes, and one if the machine was busy before the first measurement.
pub(crate) fn notes(notes: &[String], busy_cores_before: f64) -> String {
    let mut text: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
    if busy_cores_before > BUSY {
        text += &format!(
            "note: {busy_cores_before:.1} cores were busy with other work before the first measurement: speeds and CPU \
             time are worth little, ratios somewhat more.\n"
        );
    }
    text
}
