//! The report of a run.

use serde::Serialize;

use super::args::SoakArgs;
use super::figures::{Figures, Process};
use super::trend::growth;
use crate::machine::Machine;
use crate::plot::{Lines, Panel};
use crate::stats::Summary;

/// Seconds of a line of the table.
const LINE: u64 = 600;
/// Growth that is not counted: what caches and a few connections at the end of an interval explain.
const SPARE_MIB: f64 = 6.0;
const SPARE_SHARE: f64 = 0.1;
const SPARE_DESCRIPTORS: f64 = 3.0;
const SPARE_THREADS: f64 = 2.0;

/// The figures of all intervals.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    seconds: u64,
    interval_s: u64,
    intervals: Vec<Figures>,
    growth: Vec<Growth>,
    faults: Vec<String>,
}

/// How much a figure grew, from the warm-up to the end.
#[derive(Clone, Debug, Serialize)]
struct Growth {
    what: &'static str,
    unit: &'static str,
    /// Medians of the values of the first and the last quarter.
    early: f64,
    late: f64,
    growth: f64,
    allowed: f64,
}

type Figure = fn(&Figures) -> f64;

/// What must not grow: its name, its unit, and what of it is allowed.
const STEADY: [(&str, &str, Figure, Spare); 6] = [
    ("memory of the gateway", "MiB", |figures| figures.gateway.rss_mib, Spare::Memory),
    ("memory of the client", "MiB", |figures| figures.client.rss_mib, Spare::Memory),
    ("descriptors of the gateway", "", |figures| figures.gateway.descriptors as f64, Spare::Descriptors),
    ("descriptors of the client", "", |figures| figures.client.descriptors as f64, Spare::Descriptors),
    ("threads of the gateway", "", |figures| figures.gateway.threads as f64, Spare::Threads),
    ("threads of the client", "", |figures| figures.client.threads as f64, Spare::Threads),
];

#[derive(Clone, Copy)]
enum Spare {
    Memory,
    Descriptors,
    Threads,
}

impl Spare {
    fn allowed(self, early: f64) -> f64 {
        match self {
            Self::Memory => SPARE_MIB.max(SPARE_SHARE * early),
            Self::Descriptors => SPARE_DESCRIPTORS,
            Self::Threads => SPARE_THREADS,
        }
    }
}

impl Report {
    pub(super) fn new(args: &SoakArgs, machine: Machine) -> Self {
        let (seconds, interval_s) = (args.time().as_secs(), args.interval().as_secs());
        Self { machine, seconds, interval_s, intervals: Vec::new(), growth: Vec::new(), faults: Vec::new() }
    }

    pub(super) fn add(&mut self, figures: Figures) {
        let at = figures.at;
        self.faults.extend(figures.faults.iter().map(|fault| format!("at {at} s: {fault}")));
        self.intervals.push(figures);
    }

    pub(super) fn fault(&mut self, text: String) {
        self.faults.push(text);
    }

    pub(super) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// Looks for what grew in the second half, in which no restart hides it.
    pub(super) fn judge(&mut self) {
        let steady = &self.intervals[self.intervals.len().div_ceil(2)..];
        for (what, unit, figure, spare) in STEADY {
            let values: Vec<f64> = steady.iter().map(figure).collect();
            let Some(growth) = growth(&values) else { continue };
            let quarter = values.len() / 4;
            let median = |values: &[f64]| Summary::of(values.iter().copied()).map_or(0.0, |of| of.median);
            let early = median(&values[..quarter]);
            let late = median(&values[values.len() - quarter..]);
            let allowed = spare.allowed(early);
            if growth > allowed {
                self.faults.push(format!("{what} grew by {growth:.1} {unit} from {early:.1}"));
            }
            self.growth.push(Growth { what, unit, early, late, growth, allowed });
        }
    }

    /// Returns one line about an interval.
    pub(super) fn line(figures: &Figures) -> String {
        let Figures { at, pings, requests, gateway, client, .. } = figures;
        let event = [
            figures.restart.map(|how| format!("restart ({how:?})")),
            figures.flood.map(|name| format!("flood {name} ({})", figures.flooded)),
            (figures.reloads > 0).then(|| "reload".to_owned()),
        ];
        let events: Vec<String> = event.into_iter().flatten().collect();
        let mut line = format!(
            "{:>6} s  {:.0}+{:.0} Mbit/s  ping {:.2}/{:.2} ms  request {:.1}/{:.1} ms  lost {} of {} (counted {})  \
             pause {} ms  peers {}  gateway {}  client {}  busy {:.1}  {}",
            at,
            figures.mbit_to_gateway,
            figures.mbit_from_gateway,
            pings.p50,
            pings.p99,
            requests.p50,
            requests.p99,
            figures.lost.total(),
            figures.sent,
            figures.counted,
            figures.longest_pause_ms,
            figures.peers,
            used(gateway),
            used(client),
            figures.busy_cores,
            events.join(", ")
        );
        for fault in &figures.faults {
            line += &format!("\n  FAULT: {fault}");
        }
        line
    }

    /// Returns the report as Markdown, with a line for ten minutes.
    pub(super) fn text(&self) -> String {
        let mut text = String::from(
            "| Minutes | Mbit/s to, from | Ping p50, p99 (ms) | Request p50, p99 (ms) | Sent | Lost, counted | \
             Longest pause (ms) | Visits, roams | Gateway: MiB, descriptors, threads, CPU % | Client | Events |\n\
             |---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let per_line = (LINE / self.interval_s).max(1) as usize;
        for intervals in self.intervals.chunks(per_line) {
            text += &row(intervals);
        }
        for Growth { what, unit, early, late, growth, allowed } in &self.growth {
            text += &format!(
                "\n{what}: {early:.1} {unit} early and {late:.1} late in the second half, growth {growth:.2}, \
                 allowed {allowed:.1}"
            );
        }
        let sum = |of: Figure| self.intervals.iter().map(of).sum::<f64>();
        text += &format!(
            "\n\n{} intervals of {} s; {} packets checked one by one, {} lost, {} counted; {} requests; {} scrapes; \
             {} reloads; {} restarts; {} datagrams of floods\n",
            self.intervals.len(),
            self.interval_s,
            sum(|figures| figures.sent as f64),
            sum(|figures| figures.lost.total() as f64),
            sum(|figures| figures.counted as f64),
            sum(|figures| figures.requests.count as f64),
            sum(|figures| figures.scrapes as f64),
            sum(|figures| figures.reloads as f64),
            self.intervals.iter().filter(|figures| figures.restart.is_some()).count(),
            sum(|figures| figures.flooded as f64),
        );
        for fault in &self.faults {
            text += &format!("fault: {fault}\n");
        }
        text + &format!("{} faults\n", self.faults.len())
    }

    /// Returns the plots over time.
    pub(super) fn plot(&self) -> Lines {
        let every = (LINE / self.interval_s).max(1) as usize;
        let label = |(place, figures): (usize, &Figures)| {
            let is_shown = (place + 1).is_multiple_of(every);
            if is_shown { (figures.at / 60).to_string() } else { String::new() }
        };
        let panel = |axis: &str, lines: [Figure; 2]| Panel {
            axis: axis.to_owned(),
            lines: lines
                .map(|figure| self.intervals.iter().map(|figures| Some(figure(figures))).collect())
                .to_vec(),
        };
        Lines {
            title: format!("{} minutes of mixed load", self.seconds / 60),
            axis: "minutes".to_owned(),
            settings: self.intervals.iter().enumerate().map(label).collect(),
            names: vec!["gateway, to it, p50".to_owned(), "client, from it, p99".to_owned()],
            panels: vec![
                panel("Mbit/s", [|figures| figures.mbit_to_gateway, |figures| figures.mbit_from_gateway]),
                panel("ping, ms", [|figures| figures.pings.p50, |figures| figures.pings.p99]),
                panel("memory, MiB", [|figures| figures.gateway.rss_mib, |figures| figures.client.rss_mib]),
                panel(
                    "descriptors",
                    [
                        |figures| figures.gateway.descriptors as f64,
                        |figures| figures.client.descriptors as f64,
                    ],
                ),
            ],
            notes: Vec::new(),
        }
    }
}

fn used(process: &Process) -> String {
    let Process { rss_mib, descriptors, threads, cpu_percent } = process;
    format!("{rss_mib:.1} MiB {descriptors} fd {threads} thr {cpu_percent:.0} %")
}

fn row(intervals: &[Figures]) -> String {
    let median = |of: Figure| Summary::of(intervals.iter().map(of)).map_or(0.0, |summary| summary.median);
    let sum = |of: Figure| intervals.iter().map(of).sum::<f64>();
    let most = |of: Figure| intervals.iter().map(of).fold(0.0, f64::max);
    let at = |figures: Option<&Figures>| figures.map_or(0, |figures| figures.at / 60);
    let mut events: Vec<String> = intervals
        .iter()
        .filter_map(|figures| Some(format!("{:?}", figures.restart?).to_lowercase()))
        .collect();
    events.extend(intervals.iter().filter_map(|figures| figures.flood).map(str::to_owned));
    let reloads = sum(|figures| figures.reloads as f64);
    if reloads > 0.0 {
        events.push(format!("{reloads} reloads"));
    }
    format!(
        "| {} | {:.0}, {:.0} | {:.2}, {:.2} | {:.1}, {:.1} | {} | {}, {} | {} | {}, {} | {:.1}, {}, {}, {:.0} | {:.1}, {}, {}, {:.0} | {} |\n",
        at(intervals.last()),
        median(|figures| figures.mbit_to_gateway),
        median(|figures| figures.mbit_from_gateway),
        median(|figures| figures.pings.p50),
        median(|figures| figures.pings.p99),
        median(|figures| figures.requests.p50),
        median(|figures| figures.requests.p99),
        sum(|figures| figures.sent as f64),
        sum(|figures| figures.lost.total() as f64),
        sum(|figures| figures.counted as f64),
        most(|figures| figures.longest_pause_ms as f64),
        sum(|figures| figures.visits as f64),
        sum(|figures| figures.roams as f64),
        median(|figures| figures.gateway.rss_mib),
        most(|figures| figures.gateway.descriptors as f64),
        most(|figures| figures.gateway.threads as f64),
        median(|figures| figures.gateway.cpu_percent),
        median(|figures| figures.client.rss_mib),
        most(|figures| figures.client.descriptors as f64),
        most(|figures| figures.client.threads as f64),
        median(|figures| figures.client.cpu_percent),
        events.join(", ")
    )
}
