//! The closing report for people, within 80 columns: a table of the traffic, and the verdict.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::load::TCP_FLOWS;
use super::report::Report;

const GREEN: &str = "\x1b[1;32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[1;31m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Returns the headings of the lines of [`progress`].
pub(super) fn progress_heading() -> String {
    let mut line = format!("{BOLD}{:>5}", "time");
    for flow in TCP_FLOWS {
        let _ = write!(line, "  {:>10}", format!("{} {}", flow.direction().replace(' ', ""), flow.family()));
    }
    let _ = writeln!(line, "  {:>8}  {:>14}{PLAIN}", "Gbit/s", "UDP datagrams");
    line
}

/// Returns one line for the time up to `seconds`: Gbit/s by flow and in total, and datagrams received of
/// those sent.
pub(super) fn progress(seconds: u64, rates: [f64; TCP_FLOWS.len()], (sent, received): (u64, u64)) -> String {
    let mut line = format!("{:>4}s", seconds);
    for rate in rates {
        let _ = write!(line, "  {rate:>10.2}");
    }
    let total: f64 = rates.iter().sum();
    let _ = writeln!(line, "  {BOLD}{total:>8.2}{PLAIN}  {:>14}", format!("{received}/{sent}"));
    line
}

/// Returns the whole report, with colours.
pub(super) fn report(report: &Report) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\n{}\n{}", traffic(report), cpu(report));
    for note in &report.notes {
        let _ = writeln!(text, "{YELLOW}note:{PLAIN} {note}");
    }
    for problem in &report.problems {
        let _ = writeln!(text, "{RED}problem:{PLAIN} {problem}");
    }
    if report.problems.is_empty() {
        let gbit = report.total_gbit_per_second();
        let verdict = if report.notes.is_empty() {
            "Every packet arrived, in order and unchanged:"
        } else {
            "What arrived is in order and unchanged; the notes say what was lost, and where:"
        };
        let _ = writeln!(text, "{GREEN}{verdict}{PLAIN} {gbit:.2} Gbit/s over {:.1} s.", report.seconds);
    }
    text
}

fn row(table: &mut Table, cells: [String; 5]) {
    let aligned = |(column, text)| {
        Cell::new(text).set_alignment(if column == 0 { CellAlignment::Left } else { CellAlignment::Right })
    };
    table.add_row(cells.into_iter().enumerate().map(aligned));
}

fn traffic(report: &Report) -> Table {
    let mut table = Table::new();
    // Colours are added outside the cells.
    table.force_no_tty().load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(["Traffic", "Gbit/s", "sent", "arrived right", "sent again"]);
    for flow in &report.tcp {
        row(
            &mut table,
            [
                format!("TCP {} {}", flow.direction, flow.family),
                format!("{:.2}", report.gbit_per_second(flow.received_bytes)),
                bytes(flow.sent_bytes),
                bytes(flow.first_mismatch.unwrap_or(flow.received_bytes)),
                grouped(flow.retransmits),
            ],
        );
    }
    for (flow, direction) in report.udp.iter().zip(["a → b", "b → a"]) {
        let tally = flow.forward;
        let clean = tally.received.saturating_sub(tally.out_of_order);
        let cells =
            [format!("UDP {direction} IPv4"), "–".into(), grouped(tally.sent), grouped(clean), "–".into()];
        row(&mut table, cells);
    }
    table
}

/// Returns what each Gbit cost.
fn cpu(report: &Report) -> String {
    let gbit = report.total_gbit_per_second() * report.seconds;
    let cost = |seconds: f64| if gbit > 0.0 { format!("{:.3}", seconds / gbit) } else { "–".to_owned() };
    let daemons: Vec<_> = report.daemons.iter().map(|daemon| cost(daemon.cpu_seconds)).collect();
    let traffic = cost(report.traffic_cpu_seconds);
    format!("CPU seconds a Gbit: daemons {}; traffic and its checks {traffic}.", daemons.join(", "))
}

fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// Formats a number with its digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::tests::clean;

    #[test]
    fn everything_fits_into_80_columns() {
        let mut worst = clean();
        worst.tcp[0].retransmits = 12_345_678_901;
        let text =
            report(&worst) + &progress_heading() + &progress(3600, [123.45; 4], (3_600_000, 3_600_000));
        let tables = anstream::adapter::strip_str(&text).to_string();
        for line in tables.lines().filter(|line| !line.starts_with("problem")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(tables.contains("12,345,678,901"));
    }

    #[test]
    fn the_last_line_promises_no_more_than_what_happened() {
        let mut run = clean();
        assert!(report(&run).contains("Every packet arrived, in order"));
        run.udp[0].forward.lost = 3;
        run.daemons[1].kernel_drops.receive_buffer_full = 3;
        run.judge();
        let text = report(&run);
        assert!(text.contains("the notes say what was lost, and where") && !text.contains("Every packet"));
        assert!(text.contains("3 of 1000 datagrams were lost, which the drops below explain"), "{text}");
        run.daemons[1].kernel_drops.receive_buffer_full = 0;
        run.judge();
        assert!(!report(&run).contains("in order and unchanged"));
    }

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
