//! The report as text: a table for each kind of case, one of the ratios and one of the context figures.

use std::fmt::Write as _;

use comfy_table::{Cell, Table};

use super::{CaseReport, Comparison, Figures, Report};
use crate::batches::Batches;
use crate::metric::Metric;
use crate::output::{self, BUSY, table};

/// Formats all tables, and the conditions of the measurements.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Cases with the same columns share a table.
    for cases in report.cases.chunk_by(|a, b| a.case.columns() == b.case.columns()) {
        let columns = cases.first().map_or(&[][..], |case| case.case.columns());
        text += &figures(cases, columns);
    }
    if !report.comparisons.is_empty() {
        text += &ratios(&report.comparisons);
    }
    let context: Vec<CaseReport> = report.cases.iter().filter_map(with_context).collect();
    if !context.is_empty() {
        text += "What each Gbit cost, both daemons together where not said otherwise:\n";
        text += &figures(&context, &Metric::CONTEXT);
        text += &batches(&context);
    }
    text + &conditions(report)
}

fn figures(cases: &[CaseReport], columns: &[Metric]) -> String {
    let titles = columns.iter().map(|metric| metric.title());
    let header: Vec<&str> = ["case", "implementation"].into_iter().chain(titles).collect();
    let mut table = table(header, 2);
    for case in cases {
        let shown = case.subjects.iter().filter(|figures| !figures.samples.is_empty());
        for (place, figures) in shown.enumerate() {
            let mut row = vec![
                Cell::new(if place == 0 { case.case.title() } else { String::new() }),
                Cell::new(&figures.name),
            ];
            row.extend(columns.iter().map(|metric| Cell::new(value(figures, *metric))));
            table.add_row(row);
        }
    }
    format!("{table}\n")
}

fn value(figures: &Figures, metric: Metric) -> String {
    figures.metrics.get(&metric).map_or_else(|| "–".to_owned(), |summary| metric.format(summary.median))
}

fn with_context(case: &CaseReport) -> Option<CaseReport> {
    let has_context =
        |figures: &&Figures| Metric::CONTEXT.iter().any(|metric| figures.metrics.contains_key(metric));
    let subjects: Vec<Figures> = case.subjects.iter().filter(has_context).cloned().collect();
    (!subjects.is_empty()).then_some(CaseReport { case: case.case, subjects })
}

/// Formats the table of weft's batch sizes, both ends together.
fn batches(cases: &[CaseReport]) -> String {
    let mut table: Option<Table> = None;
    for case in cases {
        for figures in &case.subjects {
            let Some(shares) = figures.batches.and_then(Batches::shares) else { continue };
            let table = table.get_or_insert_with(|| {
                let labels = shares.iter().map(|(label, _)| label.as_str());
                output::table(["case", "implementation"].into_iter().chain(labels), 2)
            });
            let cells = shares.iter().map(|(_, share)| format!("{:.1} %", 100.0 * share));
            table.add_row([case.case.title(), figures.name.clone()].into_iter().chain(cells));
        }
    }
    table.map_or_else(String::new, |table| {
        format!("What weft sent at once, in datagrams; shares of all its sends:\n{table}\n")
    })
}

fn ratios(comparisons: &[Comparison]) -> String {
    let mut table =
        table(["case", "figure", "of", "by that of", "ratio", "(by round)", "target", "holds"], 4);
    let mut before = None;
    for comparison in comparisons {
        let Comparison { case, metric, ours, theirs, ratio, value, wanted, holds } = comparison;
        let (ratio, spread) = match (ratio, value) {
            (Some(ratio), _) => {
                (format!("{:.2}×", ratio.median), format!("({:.2}–{:.2})", ratio.lowest, ratio.highest))
            }
            (None, Some(value)) if theirs.is_none() => (metric.format(value.highest), String::new()),
            (None, _) => ("–".to_owned(), String::new()),
        };
        let holds = holds.map_or("", |holds| if holds { "✓ yes" } else { "✗ no" });
        table.add_row([
            if before == Some(case) { String::new() } else { case.title() },
            metric.title().to_owned(),
            ours.clone(),
            theirs.clone().unwrap_or_default(),
            ratio,
            spread,
            wanted.map_or_else(String::new, |wanted| wanted.text(*metric)),
            holds.to_owned(),
        ]);
        before = Some(case);
    }
    let targets = || comparisons.iter().filter(|comparison| comparison.wanted.is_some());
    let count = |holds| targets().filter(|comparison| comparison.holds == holds).count();
    let (all, held, open) = (targets().count(), count(Some(true)), count(None));
    let mut text = format!("{table}\n");
    if all > 0 {
        let _ = write!(text, "{held} of {all} targets hold");
        let _ = if open > 0 {
            writeln!(text, "; {open} cannot be judged without the figures of the others.")
        } else {
            writeln!(text, ".")
        };
    }
    text
}

/// Formats the conditions of the measurements.
pub(crate) fn conditions(report: &Report) -> String {
    let Report { machine, seconds, rounds, busy_cores_before, stolen_cores, .. } = report;
    let mut mtus: Vec<String> = report.subjects.iter().map(|subject| subject.mtu.to_string()).collect();
    mtus.dedup();
    let mut text = format!(
        "Medians of {rounds} × {seconds} s; MTU {}; {} × {}; Linux {}; {}.\n",
        mtus.join(", "),
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.tcp_congestion_control
    );
    if let Some(link) = &report.link {
        let _ = writeln!(text, "Over an emulated link: {link}.");
    }
    if *stolen_cores > BUSY {
        let _ = writeln!(
            text,
            "note: the host of this virtual machine gave {stolen_cores:.1} of its cores to others meanwhile."
        );
    }
    text + &output::notes(&report.notes, *busy_cores_before)
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn the_tables_have_a_line_for_each_and_say_what_holds() {
        let text = text(&report());
        for shown in [
            "TCP, 1 stream",
            "3.00",
            "2.00×",
            "(1.50–2.00)",
            "≥ 1.70×",
            "✓ yes",
            "✗ no",
            "≤ 64.0",
            "3 of 6 targets hold",
            "0.250",
            "5000",
            "Medians of 3 × 5 s",
            "cubic",
            "note: udp-64, go: it ended",
            "What weft sent at once",
            "75.0 %",
        ] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
        assert!(!text.contains("cores were busy"));
    }

    #[test]
    fn a_busy_machine_is_noted() {
        let busy = Report { busy_cores_before: 1.0, stolen_cores: 0.5, ..report() };
        let text = text(&busy);
        assert!(
            text.contains("note: 1.0 cores were busy") && text.contains("gave 0.5 of its cores"),
            "{text}"
        );
    }
}
