//! The closing report as tables for people, within 80 columns.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::account::Account;
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
    let _ = writeln!(text, "\n{}\n{}\n{}", tcp(report), daemons(report), cpu(report));
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

fn table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    // Colours are added outside the cells.
    table.force_no_tty().load_style(presets::UTF8_FULL_CONDENSED.with_rounded_corners());
    table.set_header(headings.iter().enumerate().map(|(column, heading)| aligned(column, heading)));
    table
}

fn row(table: &mut Table, cells: impl IntoIterator<Item = String>) {
    table.add_row(cells.into_iter().enumerate().map(|(column, text)| aligned(column, &text)));
}

fn aligned(column: usize, text: &str) -> Cell {
    Cell::new(text).set_alignment(if column == 0 { CellAlignment::Left } else { CellAlignment::Right })
}

fn tcp(report: &Report) -> Table {
    let mut tcp = table(["Traffic", "Gbit/s", "sent", "arrived right", "sent again"]);
    for flow in &report.tcp {
        row(
            &mut tcp,
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
        row(&mut tcp, cells);
    }
    tcp
}

type Figure = (&'static str, fn(&Account) -> String);

fn daemons(report: &Report) -> Table {
    let figures: [Figure; 10] = [
        ("handshakes", |a| grouped(a.handshakes)),
        ("packets read from the TUN", |a| grouped(a.segments_read)),
        ("  in reads of (average)", |a| ratio(a.segments_read, a.packets_read)),
        ("datagrams sent", |a| grouped(a.datagrams_sent)),
        ("  in sends of (average)", |a| ratio(a.datagrams_sent, a.messages_sent())),
        ("  in sends of 1 / 2–16 / 17–64", |a| batches(a)),
        ("datagrams received", |a| grouped(a.datagrams_received)),
        ("  in receives of (average)", |a| ratio(a.datagrams_received, a.receive_calls)),
        ("packets written to the TUN", |a| grouped(a.segments_written)),
        ("  in writes of (average)", |a| ratio(a.segments_written, a.packets_written)),
    ];
    let mut daemons = table(["Daemon", "a", "b"]);
    for (name, figure) in figures {
        let values = report.daemons.iter().map(|daemon| figure(&daemon.account));
        row(&mut daemons, std::iter::once(name.to_owned()).chain(values));
    }
    let mut reasons: Vec<&str> =
        report.daemons.iter().flat_map(|daemon| daemon.account.drops.iter().map(|drop| drop.0)).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let values = report.daemons.iter().map(|daemon| {
            let count = daemon.account.drops.iter().find(|drop| drop.0 == reason).map_or(0, |drop| drop.1);
            grouped(count)
        });
        row(&mut daemons, std::iter::once(format!("dropped: {reason}")).chain(values));
    }
    let kernel = report.daemons.iter().map(|daemon| grouped(daemon.kernel_drops.total()));
    row(&mut daemons, std::iter::once("dropped by the kernel".to_owned()).chain(kernel));
    daemons
}

fn cpu(report: &Report) -> Table {
    let mut cpu = table(["CPU", "seconds", "cores", "seconds a Gbit"]);
    let gbit = report.total_gbit_per_second() * report.seconds;
    let mut parts: Vec<_> =
        report.daemons.iter().map(|daemon| (format!("daemon {}", daemon.name), daemon.cpu_seconds)).collect();
    parts.push(("traffic and its checks".to_owned(), report.traffic_cpu_seconds));
    for (name, seconds) in parts {
        let cores = seconds / report.seconds.max(0.001);
        let cost = if gbit > 0.0 { format!("{:.3}", seconds / gbit) } else { "–".into() };
        row(&mut cpu, [name, format!("{seconds:.2}"), format!("{cores:.2}"), cost]);
    }
    cpu
}

fn batches(account: &Account) -> String {
    let [one, two, four, eight, sixteen, many @ ..] = account.batch_segments;
    let total = account.messages_sent();
    let share = |count: u64| count as f64 * 100.0 / total.max(1) as f64;
    let few = two + four + eight + sixteen;
    format!("{:.0} / {:.0} / {:.0} %", share(one), share(few), share(many.iter().sum()))
}

fn ratio(of: u64, by: u64) -> String {
    if by == 0 { "–".to_owned() } else { format!("{:.1}", of as f64 / by as f64) }
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
        for daemon in &mut worst.daemons {
            daemon.account.segments_read = 12_345_678_901;
            daemon.account.drops = vec![("handshake_rate_limited", 12_345_678)];
        }
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

    #[test]
    fn batch_sizes_are_shares_of_all_sends() {
        let account = Account { batch_segments: [1, 1, 0, 0, 0, 0, 2], ..Account::default() };
        assert_eq!(batches(&account), "25 / 25 / 50 %");
    }
}
