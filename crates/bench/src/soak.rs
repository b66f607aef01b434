//! `weft-bench soak`: a gateway under all that happens to one, for hours, and whether anything grows, stalls
//! or is lost.
//!
//! A run is a row of intervals. In each there are bulk traffic, pings, numbered flows and peers that come, go
//! and roam; in some there are a reload and a flood, and before some the daemon is restarted. Numbered flows
//! and pings begin and end with the interval, so that what they lost can be compared with what was counted;
//! streams and ordered flows go on through restarts.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use crate::implementation::Implementation;
use crate::implementation::named::{self, Named};
use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample};
use crate::site::check_permission;
use crate::stats::{Summary, growth};

mod load;
mod peers;
mod run;
mod site;

/// The time that a flow may be without progress, and a peer without a session: docs/RELIABILITY.md.
const STALL: Duration = Duration::from_secs(30);
/// Seconds of a row of the table.
const ROW: u64 = 600;

/// What a daemon uses: the gateway, and its client. Only the last one may grow.
const USED: [[Figure; 4]; 2] = [
    [
        Figure::new("gateway_rss_mib", "gateway: MiB", 1),
        Figure::new("gateway_descriptors", "descriptors", 0),
        Figure::new("gateway_threads", "threads", 0),
        Figure::new("gateway_cpu_percent", "CPU %", 0),
    ],
    [
        Figure::new("client_rss_mib", "client: MiB", 1),
        Figure::new("client_descriptors", "descriptors", 0),
        Figure::new("client_threads", "threads", 0),
        Figure::new("client_cpu_percent", "CPU %", 0),
    ],
];
const SENT: Figure = Figure::new("sent", "packets checked", 0);
const LOST: Figure = Figure::new("lost", "lost", 0);
const COUNTED: Figure = Figure::new("counted", "counted as dropped", 0);
const VISITS: Figure = Figure::new("visits", "visits", 0);
const ROAMS: Figure = Figure::new("roams", "roams", 0);
const FLOODED: Figure = Figure::new("flooded", "datagrams of floods", 0);

#[derive(Clone, Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long to run, in hours.
    #[arg(value_name = "HOURS", default_value_t = 2, conflicts_with = "minutes", value_parser = clap::value_parser!(u32).range(1..=1000))]
    hours: u32,
    /// How long to run, in minutes, such as 5 or 0.5.
    #[arg(long, value_name = "N", value_parser = minutes)]
    minutes: Option<Duration>,
    /// The time between two lines of figures, in seconds.
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(5..=600))]
    every: u32,
    /// The rate of bulk traffic in Mbit/s: two thirds to the gateway, one third from it.
    #[arg(long, value_name = "MBIT", default_value_t = 300, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    mbit: u32,
    /// Peers that come, go and roam.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5000))]
    peers: u32,
    /// Datagrams a second of a flood.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flood: u32,
    /// A directory for the figures (soak.json), the tables (soak.txt) and the logs of the daemons.
    #[arg(long, value_name = "DIRECTORY", overrides_with = "out")]
    out: Option<PathBuf>,
    /// The weft to load, and more arguments for `weft up`; without it the one beside this program.
    #[arg(long, value_name = "[NAME=]PATH [ARGS]", value_parser = named::weft)]
    weft: Option<Named>,
}

impl SoakArgs {
    fn time(&self) -> Duration {
        self.minutes.unwrap_or(Duration::from_secs(3600 * u64::from(self.hours)))
    }

    /// Returns the length of an interval, at the end of which figures are taken.
    fn interval(&self) -> Duration {
        Duration::from_secs(self.every.into())
    }

    fn intervals(&self) -> usize {
        (self.time().as_secs() / u64::from(self.every)).max(1) as usize
    }
}

fn minutes(text: &str) -> Result<Duration, &'static str> {
    let minutes = text.parse().ok().filter(|minutes| (0.1..=60_000.0).contains(minutes));
    minutes.map(|minutes: f64| Duration::from_secs_f64(minutes * 60.0)).ok_or("0.1 to 60000 minutes")
}

pub(crate) fn run(args: &SoakArgs, json: bool) -> Result<()> {
    check_permission()?;
    let implementation = Implementation::weft(args.weft.as_ref().map_or(&[], |weft| &weft.words))?;
    let files = tempfile::tempdir()?;
    let out = args.out.as_deref().unwrap_or(files.path());
    std::fs::create_dir_all(out)?;
    let interrupt = Interrupt::watch()?;
    let seconds = args.time().as_secs();
    let report =
        Report::begin(&[("seconds", &seconds), ("an interval", &args.every), ("Mbit/s", &args.mbit)])?;
    let mut account = Account { report, intervals: Vec::new(), faults: Vec::new() };
    let ended = run::run(args, &implementation, out, &interrupt, &mut account);
    if let Err(error) = &ended {
        account.fault(format!("it ended early: {error:#}"));
    }
    account.judge();
    let Account { mut report, faults, .. } = account;
    faults.iter().for_each(|fault| report.note(format!("fault: {fault}")));
    if args.out.is_some() {
        report.save(&out.join("soak"))?;
    }
    let ended = ended.and_then(|()| {
        ensure!(faults.is_empty(), "{} faults: see the notes of the report", faults.len());
        Ok(())
    });
    report.finish(ended, json)
}

/// The figures of all intervals, and what was wrong.
struct Account {
    report: Report,
    intervals: Vec<Sample>,
    faults: Vec<String>,
}

impl Account {
    /// Adds the figures of an interval that ended `at` seconds after the beginning.
    fn add(&mut self, at: u64, sample: Sample, events: &[String]) {
        eprintln!("{at:>6} s  {sample}  {}", events.join(", "));
        let row = format!("minute {}", (at.saturating_sub(1) / ROW + 1) * ROW / 60);
        let kept = sample.only(&[LOST, COUNTED, FLOODED]);
        events.iter().for_each(|event| self.report.add("events", event, "", kept.clone()));
        self.report.add("until", &row, "", sample.clone());
        self.intervals.push(sample);
    }

    fn fault(&mut self, text: String) {
        eprintln!("FAULT: {text}");
        self.faults.push(text);
    }

    /// Sums up, and looks for what grew in the second half, in which no restart hides it.
    fn judge(&mut self) {
        let sum = |figure| self.intervals.iter().filter_map(|sample| sample.get(figure)).sum();
        let all = [SENT, LOST, COUNTED, VISITS, ROAMS, FLOODED];
        let all = all.into_iter().fold(Sample::default(), |sample, figure| sample.with(figure, sum(figure)));
        self.report.add("in all", "", "", all);
        let steady = &self.intervals[self.intervals.len().div_ceil(2)..];
        for (kind, figure) in USED.iter().flat_map(|used| used[..3].iter().enumerate()) {
            let values: Vec<f64> = steady.iter().filter_map(|sample| sample.get(*figure)).collect();
            let Some(growth) = growth(&values) else { continue };
            let quarter = values.len() / 4;
            let median = |values: &[f64]| Summary::of(values.iter().copied()).map_or(0.0, |of| of.median);
            let (early, late) = (median(&values[..quarter]), median(&values[values.len() - quarter..]));
            // What caches and a few connections at the end of an interval explain.
            let allowed = [(0.1 * early).max(6.0), 3.0, 2.0][kind];
            if growth > allowed {
                self.faults.push(format!("{} grew by {growth:.1} from {early:.1}", figure.name));
            }
            let sample = Sample::default().with_all([
                ("early", "first quarter", 1, early),
                ("late", "last quarter", 1, late),
                ("growth", "growth", 2, growth),
                ("allowed", "allowed", 1, allowed),
            ]);
            self.report.add("growth in the second half", figure.name, "", sample);
        }
    }
}
