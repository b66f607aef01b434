//! `weft-bench sweep`: weft over TUN threads, TCP streams and MTUs.

use anyhow::{Result, ensure};
use serde::Serialize;
use weft_config::TunThreads;

use super::measure;
use crate::case::Case;
use crate::cli::SweepArgs;
use crate::implementation::Implementation;
use crate::metric::Metric;
use crate::output;
use crate::plot::{self, Line, Lines, Panel};
use crate::report::{self, Report, tables};
use crate::rounds::{Plan, Subject};
use crate::stats::{self, Summary};
use crate::topology::Wire;

/// The figures of a point, in the order of the table.
const COLUMNS: [Metric; 5] = [
    Metric::GbitPerSecond,
    Metric::CpuSecondsPerGbit,
    Metric::Retransmits,
    Metric::OutOfOrder,
    Metric::Reorderings,
];

/// Measures and prints the report.
pub(super) fn run(args: &SweepArgs, json: bool) -> Result<()> {
    let wefts = args.measure.wefts.commands();
    ensure!(wefts.len() == 1, "a sweep is over one weft: give --weft once");
    ensure!(
        !wefts[0].arguments.iter().any(|argument| argument.starts_with("--tun-threads")),
        "a sweep sets the TUN threads of its points: leave --tun-threads out of --weft, and give the sweep a list of them"
    );
    let mut subjects = Vec::new();
    for &mtu in &args.mtu {
        for &tun_threads in &args.tun_threads {
            let implementation = Implementation::weft(&wefts[0], tun_threads, args.measure.offload)?;
            subjects.push(Subject { name: name(tun_threads, mtu), implementation, mtu });
        }
    }
    let report = measure(&Plan {
        subjects,
        cases: args.streams.iter().map(|&streams| case(args, streams)).collect(),
        wire: Wire::default(),
        congestion: args.measure.congestion.clone(),
        secs: args.measure.secs,
        rounds: args.measure.rounds,
        system_calls: false,
    })?;
    let points = points(args, &report);
    #[derive(Serialize)]
    struct Sweep<'a> {
        points: &'a [Point],
        report: &'a Report,
    }
    output::print(&Sweep { points: &points, report: &report }, json, |_| {
        table(&points) + &tables::conditions(&report)
    })?;
    if let Some(path) = &args.measure.svg {
        plot::write(path, &lines(args, &points).svg()?)?;
    }
    output::check(report.failed)
}

fn name(tun_threads: TunThreads, mtu: u16) -> String {
    format!("--tun-threads {tun_threads}, MTU {mtu}")
}

fn case(args: &SweepArgs, streams: u32) -> Case {
    Case::Tcp { streams, direction: args.direction }
}

/// One combination of the three settings.
#[derive(Clone, Debug, Serialize)]
struct Point {
    mtu: u16,
    streams: u32,
    tun_threads: String,
    /// In the order of the columns; `None` where the measurement failed.
    figures: [Option<Summary>; COLUMNS.len()],
    /// Speed divided by that with the first number of threads, round by round; `None` for the first number
    /// itself.
    by_first: Option<Summary>,
}

/// Collects the points, grouped by MTU, then by streams.
fn points(args: &SweepArgs, report: &Report) -> Vec<Point> {
    let mut points = Vec::new();
    for &mtu in &args.mtu {
        for &streams in &args.streams {
            let Some(case) = report.cases.iter().find(|found| found.case == case(args, streams)) else {
                continue;
            };
            let of = |tun_threads| case.subjects.iter().find(|found| found.name == name(tun_threads, mtu));
            let first = args.tun_threads.first().and_then(|&tun_threads| of(tun_threads));
            for (place, &tun_threads) in args.tun_threads.iter().enumerate() {
                let Some(figures) = of(tun_threads) else { continue };
                let by_first = first
                    .filter(|_| place > 0)
                    .and_then(|first| stats::ratios(report::pairs(Metric::GbitPerSecond, figures, first)));
                points.push(Point {
                    mtu,
                    streams,
                    tun_threads: tun_threads.to_string(),
                    figures: COLUMNS.map(|metric| figures.metrics.get(&metric).copied()),
                    by_first,
                });
            }
        }
    }
    points
}

fn table(points: &[Point]) -> String {
    let first = points.first().map_or("", |point| &point.tun_threads);
    let by_first = format!("Gbit/s by that of {first} (by round)");
    let titles = COLUMNS.map(Metric::title);
    let header: Vec<&str> =
        ["MTU", "streams", "--tun-threads"].into_iter().chain(titles).chain([by_first.as_str()]).collect();
    let mut table = output::table(header, 0);
    let mut before = None;
    for point in points {
        let group = (point.mtu, point.streams);
        let new = before != Some(group);
        let mut row = vec![
            if new { point.mtu.to_string() } else { String::new() },
            if new { point.streams.to_string() } else { String::new() },
            point.tun_threads.clone(),
        ];
        row.extend(COLUMNS.iter().zip(&point.figures).map(|(metric, figure)| {
            figure.map_or_else(|| "–".to_owned(), |figure| metric.format(figure.median))
        }));
        row.push(point.by_first.map_or_else(String::new, |ratio| {
            format!("{:.2}× ({:.2}–{:.2})", ratio.median, ratio.lowest, ratio.highest)
        }));
        table.add_row(row);
        before = Some(group);
    }
    format!("{table}\n")
}

/// Creates a plot with a line for each MTU and number of streams, over the TUN threads.
fn lines(args: &SweepArgs, points: &[Point]) -> Lines {
    let groups = || points.chunk_by(|a, b| (a.mtu, a.streams) == (b.mtu, b.streams));
    let panel = |column: usize| Panel {
        axis: COLUMNS[column].title().to_owned(),
        lines: groups()
            .map(|group| {
                group.iter().map(|point| point.figures[column].map(|figure| figure.median)).collect::<Line>()
            })
            .collect(),
    };
    // A panel of zeros is replaced by a line of text.
    let is_zero = |column: &usize| {
        points.iter().filter_map(|point| point.figures[*column]).all(|figure| figure.highest <= 0.0)
    };
    let (zeros, shown): (Vec<usize>, Vec<usize>) = (0..COLUMNS.len()).partition(is_zero);
    let names = groups().filter_map(|group| group.first()).map(|point| {
        format!("MTU {}, {} stream{}", point.mtu, point.streams, if point.streams == 1 { "" } else { "s" })
    });
    Lines {
        title: format!("TUN threads, {} × {} s", args.measure.rounds, args.measure.secs),
        axis: "--tun-threads".to_owned(),
        settings: args.tun_threads.iter().map(TunThreads::to_string).collect(),
        names: names.collect(),
        panels: shown.into_iter().map(panel).collect(),
        notes: zeros.into_iter().map(|column| format!("{}: 0 everywhere", COLUMNS[column].title())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(mtu: u16, tun_threads: &str, speed: f64) -> Point {
        let summary = |median| Some(Summary { median, lowest: median, highest: median });
        Point {
            mtu,
            streams: 1,
            tun_threads: tun_threads.to_owned(),
            figures: [summary(speed), summary(0.25), summary(3.0), None, summary(0.0)],
            by_first: summary(0.5),
        }
    }

    #[test]
    fn the_table_names_each_group_once_and_shows_what_failed() {
        let text = table(&[point(1420, "0", 6.5), point(1420, "1", 5.25), point(8920, "0", 9.0)]);
        for shown in ["6.50", "5.25", "0.50× (0.50–0.50)", "–", "Gbit/s by that of 0"] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
        assert_eq!(text.matches("1420").count(), 1);
    }
}
