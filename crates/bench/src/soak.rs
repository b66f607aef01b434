//! `weft-bench soak`: a gateway under all that happens to one, for hours, and whether anything grows, stalls
//! or is lost.
//!
//! A run is a row of intervals. In each there are bulk traffic, requests, pings, numbered flows and peers
//! that come, go and roam; in some there are a reload and a flood, and before some the daemon is restarted.
//! Numbered flows and pings begin and end with the interval, so that what they lost can be compared with what
//! was counted; streams, requests and ordered flows go on through restarts.

mod figures;
mod load;
mod peers;
mod progress;
mod requests;
mod run;
mod schedule;
mod service;
mod site;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use self::figures::Figures;
use crate::implementation::{Implementation, WeftCommand};
use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample};
use crate::site::check_permission;
use crate::stats::{Summary, growth};

/// The time that a flow may be without progress, and a peer without a session: docs/RELIABILITY.md.
const STALL: Duration = Duration::from_secs(30);
/// Seconds of a row of the table.
const ROW: u64 = 600;

const EARLY: Figure = Figure::new("early", "first quarter", 1);
const LATE: Figure = Figure::new("late", "last quarter", 1);
const GROWTH: Figure = Figure::new("growth", "growth", 2);
const ALLOWED: Figure = Figure::new("allowed", "allowed", 1);

/// The arguments of `weft-bench soak`.
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
    /// A directory for the figures (soak.jsonl and soak.json), the tables (soak.txt) and the logs of the
    /// daemons.
    #[arg(long, value_name = "DIRECTORY", overrides_with = "out")]
    out: Option<PathBuf>,
    /// The weft to load, and more arguments for `weft up`; without it the one beside this program.
    #[arg(long, value_name = "[NAME=]PATH [ARGS]")]
    weft: Option<WeftCommand>,
}

impl SoakArgs {
    /// Returns how long the run takes.
    fn time(&self) -> Duration {
        self.minutes.unwrap_or(Duration::from_secs(3600 * u64::from(self.hours)))
    }

    /// Returns the length of an interval, at the end of which figures are taken.
    fn interval(&self) -> Duration {
        Duration::from_secs(self.every.into())
    }

    /// Returns the number of intervals.
    fn intervals(&self) -> usize {
        (self.time().as_secs() / u64::from(self.every)).max(1) as usize
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: Option<f64> = text.parse().ok();
    let minutes = minutes.filter(|minutes| (0.1..=60_000.0).contains(minutes));
    minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0))
        .ok_or_else(|| "0.1 to 60000 minutes".to_owned())
}

/// Runs it and prints the report.
pub(crate) fn run(args: &SoakArgs, json: bool) -> Result<()> {
    check_permission()?;
    let command = args.weft.clone().unwrap_or_default();
    let implementation = Implementation::weft(&command)?;
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
    intervals: Vec<Figures>,
    faults: Vec<String>,
}

impl Account {
    fn add(&mut self, figures: Figures) {
        let at = figures.at;
        let row = format!("minute {}", (at.saturating_sub(1) / ROW + 1) * ROW / 60);
        eprintln!("{at:>6} s  {}  {}", figures.sample(), figures.events().join(", "));
        self.report.add("until", &row, "", figures.sample());
        for event in figures.events() {
            self.report.add("events", &event, "", figures.of_event());
        }
        self.faults.extend(figures.faults.iter().map(|fault| format!("at {at} s: {fault}")));
        self.intervals.push(figures);
    }

    fn fault(&mut self, text: String) {
        eprintln!("FAULT: {text}");
        self.faults.push(text);
    }

    /// Sums up, and looks for what grew in the second half, in which no restart hides it.
    fn judge(&mut self) {
        self.report.add("in all", "", "", Figures::sum(&self.intervals));
        let steady = &self.intervals[self.intervals.len().div_ceil(2)..];
        for (what, value, allowed) in figures::STEADY {
            let values: Vec<f64> = steady.iter().map(value).collect();
            let Some(growth) = growth(&values) else { continue };
            let quarter = values.len() / 4;
            let median = |values: &[f64]| Summary::of(values.iter().copied()).map_or(0.0, |of| of.median);
            let (early, late) = (median(&values[..quarter]), median(&values[values.len() - quarter..]));
            let allowed = allowed(early);
            if growth > allowed {
                self.faults.push(format!("{what} grew by {growth:.1} from {early:.1}"));
            }
            let sample = Sample::default().with(EARLY, early).with(LATE, late).with(GROWTH, growth);
            self.report.add("growth in the second half", what, "", sample.with(ALLOWED, allowed));
        }
    }
}
