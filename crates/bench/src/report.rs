//! The report of every command: samples by table, case and side, their comparisons, and the conditions. It is
//! JSON for programs, and tables (`report/text.rs`) for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::interrupt::Interrupted;
use crate::machine::{CpuTime, Machine};
use crate::stats::{self, Summary};

mod text;

/// How long the machine's load is observed before the first measurement.
const WATCH: Duration = Duration::from_secs(1);

/// One kind of figure: its name in JSON and its title in tables, both with the unit, and its decimals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    title: &'static str,
    decimals: usize,
}

impl Figure {
    pub(crate) const fn new(name: &'static str, title: &'static str, decimals: usize) -> Self {
        Self { name, title, decimals }
    }

    fn format(self, value: f64) -> String {
        format!("{value:.*}", self.decimals)
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(serializer)
    }
}

pub(crate) const GBIT: Figure = Figure::new("gbit_per_second", "Gbit/s", 2);
/// CPU time of the whole machine or of what is measured, as the command says.
pub(crate) const CPU: Figure = Figure::new("cpu_seconds_per_gbit", "CPU s/Gbit", 3);
pub(crate) const RETRANSMITS: Figure = Figure::new("retransmits", "retransmits", 0);
pub(crate) const PING_P50: Figure = Figure::new("ping_p50_ms", "p50 ms", 3);
pub(crate) const PING_P99: Figure = Figure::new("ping_p99_ms", "p99 ms", 3);
pub(crate) const PINGS_LOST: Figure = Figure::new("pings_lost", "pings lost", 0);

/// The figures of one measurement, in the order of the columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample(Vec<(Figure, f64)>);

impl Sample {
    /// Creates the sample of answered pings, given in milliseconds; without any, `nothing` stands for all.
    pub(crate) fn of_pings(millis: &[f64], nothing: f64) -> Self {
        let part = |part| stats::percentile(millis, part).unwrap_or(nothing);
        Self::default().with(PING_P50, part(0.5)).with(PING_P99, part(0.99))
    }

    /// Adds a figure. A value that is not finite, such as 0/0, is left out.
    pub(crate) fn with(mut self, figure: Figure, value: f64) -> Self {
        self.0.extend(value.is_finite().then_some((figure, value)));
        self
    }

    /// Adds figures that only the tables need.
    pub(crate) fn with_all<const N: usize>(self, all: [(&'static str, &'static str, usize, f64); N]) -> Self {
        all.into_iter().fold(self, |sample, (name, title, decimals, value)| {
            sample.with(Figure::new(name, title, decimals), value)
        })
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(crate) fn only(&self, figures: &[Figure]) -> Self {
        Self(self.0.iter().filter(|(figure, _)| figures.contains(figure)).copied().collect())
    }

    pub(crate) fn get(&self, figure: Figure) -> Option<f64> {
        self.0.iter().find(|(of, _)| *of == figure).map(|(_, value)| *value)
    }
}

impl Display for Sample {
    /// Writes the first figures, which fit a line of the terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().take(5);
        let shown = shown.map(|(figure, value)| format!("{} {}", figure.format(*value), figure.title));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(figure, value)| (figure.name, value)))
    }
}

/// The samples of one side in one case, in the order of the rounds; `None` where the measurement failed.
struct Row {
    case: String,
    side: String,
    samples: Vec<Option<Sample>>,
}

impl Row {
    /// Returns the figures of the row in the order of their first sample.
    fn figures(&self) -> Vec<Figure> {
        distinct(self.samples.iter().flatten().flat_map(|sample| &sample.0).map(|(figure, _)| *figure))
    }

    fn summary(&self, figure: Figure) -> Option<Summary> {
        Summary::of(self.samples.iter().flatten().filter_map(|sample| sample.get(figure)))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figures = self.figures().into_iter().map(|of| (of.name, self.summary(of)));
        let figures: BTreeMap<_, _> = figures.collect();
        json!({ "case": self.case, "side": self.side, "figures": figures, "samples": self.samples })
            .serialize(serializer)
    }
}

fn distinct(all: impl Iterator<Item = Figure>) -> Vec<Figure> {
    all.fold(Vec::new(), |mut figures, figure| {
        figures.extend((!figures.contains(&figure)).then_some(figure));
        figures
    })
}

#[derive(Serialize)]
struct Table {
    title: String,
    rows: Vec<Row>,
}

/// What is wanted of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wanted {
    /// Lower bound of the median ratio to the other's figure.
    RatioAtLeast(f64),
    /// Upper bound of the median ratio to the other's figure.
    RatioAtMost(f64),
    /// Upper bound of the figure itself, in every round.
    AtMost(f64),
    /// Upper bound of the figure's median.
    MedianAtMost(f64),
    /// Lower bound of the figure's median.
    MedianAtLeast(f64),
}

impl Wanted {
    pub(crate) fn is_ratio(self) -> bool {
        matches!(self, Self::RatioAtLeast(_) | Self::RatioAtMost(_))
    }

    fn text(self, figure: Figure) -> String {
        match self {
            Self::RatioAtLeast(ratio) => format!("≥ {ratio:.2}×"),
            Self::RatioAtMost(ratio) => format!("≤ {ratio:.2}×"),
            Self::AtMost(value) | Self::MedianAtMost(value) => format!("≤ {}", figure.format(value)),
            Self::MedianAtLeast(value) => format!("≥ {}", figure.format(value)),
        }
    }

    /// Reports whether a ratio or a figure meets the target; `None` if it needs a ratio and there is none.
    fn is_held_by(self, ratio: Option<Summary>, value: Summary) -> Option<bool> {
        match self {
            Self::RatioAtLeast(least) => ratio.map(|ratio| ratio.median >= least),
            Self::RatioAtMost(most) => ratio.map(|ratio| ratio.median <= most),
            Self::AtMost(most) => Some(value.highest <= most),
            Self::MedianAtMost(most) => Some(value.median <= most),
            Self::MedianAtLeast(least) => Some(value.median >= least),
        }
    }
}

/// A figure of one side compared with that of another, or with what is wanted of it alone.
#[derive(Serialize)]
struct Comparison {
    case: String,
    figure: Figure,
    ours: String,
    theirs: Option<String>,
    /// Ours divided by theirs, round by round.
    ratio: Option<Summary>,
    /// Our figure; `None` where it could not be measured.
    value: Option<Summary>,
    wanted: Option<Wanted>,
    /// Whether the target holds: false without our figure, `None` without theirs.
    holds: Option<bool>,
}

/// All results, and their conditions.
#[derive(Serialize)]
pub(crate) struct Report {
    machine: Machine,
    settings: BTreeMap<&'static str, String>,
    /// Cores that were busy with other work before the first measurement.
    busy_cores_before: f64,
    /// Cores that the host of this virtual machine gave to others during the measurements.
    stolen_cores: f64,
    tables: Vec<Table>,
    comparisons: Vec<Comparison>,
    /// Measurements that failed.
    failed: usize,
    /// Failures and deviations.
    notes: Vec<String>,
    #[serde(skip)]
    began: (Instant, CpuTime),
}

impl Report {
    /// Watches the machine for a second, and begins an empty report.
    pub(crate) fn begin(settings: &[(&'static str, &dyn Display)]) -> Result<Self> {
        let before = CpuTime::now()?;
        std::thread::sleep(WATCH);
        let now = CpuTime::now()?;
        let machine = Machine::this();
        let control = ("congestion control", machine.tcp_congestion_control.clone());
        let settings = settings.iter().map(|(name, value)| (*name, value.to_string()));
        Ok(Self {
            machine,
            settings: settings.chain([control]).collect(),
            busy_cores_before: (now.busy - before.busy).as_secs_f64() / WATCH.as_secs_f64(),
            stolen_cores: 0.0,
            tables: Vec::new(),
            comparisons: Vec::new(),
            failed: 0,
            notes: Vec::new(),
            began: (Instant::now(), now),
        })
    }

    /// Adds a condition of the measurements, or replaces it.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Display) {
        self.settings.insert(name, value.to_string());
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds the figures of one round, or a note of its failure, and tells either on standard error. An
    /// interruption is passed on.
    pub(crate) fn attempt(
        &mut self,
        table: &str,
        case: impl Display,
        side: &str,
        measured: Result<Sample>,
    ) -> Result<()> {
        let case = case.to_string();
        match measured {
            Ok(sample) => {
                eprintln!("{case:<24} {side:<14} {sample}");
                self.add(table, &case, side, sample);
            }
            Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
            Err(error) => {
                eprintln!("{case:<24} {side:<14} failed: {error:#}");
                self.add(table, &case, side, None);
                self.failed += 1;
                self.note(format!("{case}, {side}: {error:#}"));
            }
        }
        Ok(())
    }

    /// Adds the figures of one round.
    pub(crate) fn add(&mut self, table: &str, case: &str, side: &str, sample: impl Into<Option<Sample>>) {
        let place = self.tables.iter().position(|known| known.title == table).unwrap_or_else(|| {
            self.tables.push(Table { title: table.to_owned(), rows: Vec::new() });
            self.tables.len() - 1
        });
        let rows = &mut self.tables[place].rows;
        let known = rows.iter().position(|row| row.case == case && row.side == side);
        let place = known.unwrap_or_else(|| {
            // Behind the other sides of its case.
            let place = rows.iter().rposition(|row| row.case == case).map_or(rows.len(), |last| last + 1);
            rows.insert(place, Row { case: case.to_owned(), side: side.to_owned(), samples: Vec::new() });
            place
        });
        rows[place].samples.push(sample.into());
    }

    fn row(&self, [case, side]: [&str; 2], figure: Figure) -> Option<&Row> {
        let mut rows = self.tables.iter().flat_map(|table| &table.rows);
        rows.find(|row| row.case == case && row.side == side && row.summary(figure).is_some())
    }

    /// Compares a figure with that of another case or side, round by round, if both were measured or there is
    /// a target.
    pub(crate) fn compare(
        &mut self,
        ours: [&str; 2],
        theirs: [&str; 2],
        figure: Figure,
        wanted: Option<Wanted>,
    ) {
        let samples = |of| self.row(of, figure).map_or(&[][..], |row| &row.samples);
        let value = |sample: &Option<Sample>| sample.as_ref()?.get(figure);
        let pairs = samples(ours).iter().zip(samples(theirs));
        let ratio = stats::ratios(pairs.filter_map(|(ours, theirs)| value(ours).zip(value(theirs))));
        if wanted.is_some() || ratio.is_some() {
            let other = if ours[0] == theirs[0] { theirs[1] } else { theirs[0] };
            self.judge(ours, Some(other.to_owned()), figure, ratio, wanted);
        }
    }

    /// Compares a figure with what is wanted of it alone.
    pub(crate) fn require(&mut self, ours: [&str; 2], figure: Figure, wanted: Wanted) {
        self.judge(ours, None, figure, None, Some(wanted));
    }

    /// Compares a figure with what is wanted of it alone, if it was measured.
    pub(crate) fn require_if_measured(&mut self, ours: [&str; 2], figure: Figure, wanted: Wanted) {
        if self.row(ours, figure).is_some() {
            self.require(ours, figure, wanted);
        }
    }

    fn judge(
        &mut self,
        ours: [&str; 2],
        theirs: Option<String>,
        figure: Figure,
        ratio: Option<Summary>,
        wanted: Option<Wanted>,
    ) {
        let value = self.row(ours, figure).and_then(|row| row.summary(figure));
        let held = |wanted: Wanted| value.map_or(Some(false), |value| wanted.is_held_by(ratio, value));
        let [case, ours] = ours.map(str::to_owned);
        let holds = wanted.and_then(held);
        self.comparisons.push(Comparison { case, figure, ours, theirs, ratio, value, wanted, holds });
    }

    /// Writes the report into two files, as JSON and as text.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        std::fs::write(path.with_extension("json"), serde_json::to_string_pretty(self)?)?;
        Ok(std::fs::write(path.with_extension("txt"), self.text())?)
    }

    /// Prints the report, also that of a run that ended early.
    ///
    /// # Errors
    /// That of the run, or that measurements failed.
    pub(crate) fn finish(mut self, ended: Result<()>, json: bool) -> Result<()> {
        let (began, before) = self.began;
        let stolen = CpuTime::now()?.stolen.saturating_sub(before.stolen);
        self.stolen_cores = stolen.as_secs_f64() / began.elapsed().as_secs_f64();
        if let Err(error) = &ended {
            self.note(format!("it ended early: {error:#}"));
        }
        if json {
            println!("{}", serde_json::to_string_pretty(&self)?);
        } else if ended.is_ok() || !self.tables.is_empty() {
            print!("{}", self.text());
        }
        ended?;
        ensure!(self.failed == 0, "{} of the measurements failed: see the notes of the report", self.failed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_round_by_round_and_targets_are_judged_and_shown() {
        let mut report = Report::begin(&[("rounds", &3)]).unwrap();
        for (side, speeds) in [("weft", [2.0, 3.0, 4.0]), ("go", [1.0, 2.0, 2.0])] {
            for speed in speeds {
                report.add("TCP", "tcp-1", side, Sample::default().with(GBIT, speed).with(CPU, f64::NAN));
            }
        }
        let ([weft, go], target) = ([["tcp-1", "weft"], ["tcp-1", "go"]], Wanted::RatioAtLeast);
        report.compare(weft, go, GBIT, Some(target(1.7)));
        report.compare(go, weft, GBIT, Some(target(1.0)));
        report.compare(weft, ["tcp-1", "none"], GBIT, Some(target(1.0)));
        report.compare(weft, go, CPU, None);
        report.require(weft, CPU, Wanted::AtMost(1.0));
        report.require(weft, GBIT, Wanted::AtMost(3.5));
        report.require(weft, GBIT, Wanted::MedianAtMost(3.5));
        let failed = report.attempt("TCP", "tcp-4", "weft", Err(anyhow::anyhow!("no")));
        assert!(failed.is_ok() && report.failed == 1 && report.notes == ["tcp-4, weft: no"]);
        assert!(report.attempt("TCP", "x", "y", Err(Interrupted.into())).is_err(), "a signal is the end");
        let holds: Vec<_> = report.comparisons.iter().map(|comparison| comparison.holds).collect();
        assert_eq!(holds, [Some(true), Some(false), None, Some(false), Some(false), Some(true)]);
        let json = json!(report);
        assert_eq!(json["tables"][0]["rows"][0]["samples"][1]["gbit_per_second"], 3.0);
        assert_eq!(json["tables"][0]["rows"][0]["figures"]["gbit_per_second"]["median"], 3.0);
        assert_eq!(json["comparisons"][0]["ratio"]["median"], 2.0);
        let text = report.text();
        let targets = "2 of 6 targets hold; 1 cannot";
        for shown in ["3.00 (2.00–4.00)", "2.00×", "(1.50–2.00)", "≥ 1.70×", targets, "note: tcp-4"] {
            assert!(text.contains(shown), "{shown} is not in\n{text}");
        }
    }
}
