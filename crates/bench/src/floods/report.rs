//! The report, as JSON and as text.

use std::fmt::Write as _;

use serde::Serialize;

use super::args::FloodsArgs;
use super::attack::{Attack, Kind};
use super::figures::{Figures, Inner};
use super::load::MBIT_PER_SECOND;
use crate::machine::Machine;
use crate::output;
use crate::stats::{Summary, ratios};

/// Target: TCP keeps at least this share of its speed at rest beside an attack.
const KEPT: f64 = 0.95;
/// Ratio from which two speeds count as equal: paced TCP differs by less from run to run.
const AS_MUCH: f64 = 0.99;
const PING_P99_MS: f64 = 5.0;
const HANDSHAKES_PERCENT: f64 = 10.0;
const TURN_P999_MS: f64 = 3.0;
/// Target: beside an aimed attack TCP keeps at least this share of its speed beside one that is not aimed.
const ALIKE: f64 = 0.8;
/// Target: a stranger gets a session with the first initiation and two retries at most.
const TRIES: u64 = 3;
/// A flood below this share of its requested rate is noted.
const FULL_RATE: f64 = 0.9;

/// The report of all measurements.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    /// Cores that were busy with other work before the first measurement.
    busy_cores_before: f64,
    busy_loops: u32,
    seconds: u32,
    rounds: u32,
    sides: Vec<Side>,
    attacks: Vec<Part>,
    pub(super) failed: usize,
    /// Failures and deviations.
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Side {
    name: String,
    is_weft: bool,
}

/// The figures of one attack.
#[derive(Debug, Serialize)]
struct Part {
    attack: Attack,
    /// By side, then by round.
    figures: Vec<Vec<Figures>>,
}

impl Report {
    pub(super) fn new(args: &FloodsArgs, machine: Machine, busy_cores_before: f64) -> Self {
        let part = |attack| Part { attack, figures: Vec::new() };
        Self {
            machine,
            busy_cores_before,
            busy_loops: args.busy,
            seconds: args.secs,
            rounds: args.rounds,
            sides: Vec::new(),
            attacks: args.attacks().into_iter().map(part).collect(),
            failed: 0,
            notes: Vec::new(),
        }
    }

    pub(super) fn side(&mut self, name: &str, is_weft: bool) {
        self.sides.push(Side { name: name.to_owned(), is_weft });
        self.attacks.iter_mut().for_each(|part| part.figures.push(Vec::new()));
    }

    pub(super) fn add(&mut self, attack: usize, side: usize, figures: Figures) {
        let part = &mut self.attacks[attack];
        let wanted = f64::from(part.attack.per_second);
        if figures.sent_per_second < FULL_RATE * wanted {
            self.notes.push(format!(
                "{}, {}: {:.0} a second were sent, not {wanted:.0}",
                part.attack, self.sides[side].name, figures.sent_per_second
            ));
        }
        part.figures[side].push(figures);
    }

    pub(super) fn fail(&mut self, what: String) {
        eprintln!("failed: {what}");
        self.failed += 1;
        self.notes.push(what);
    }

    /// Formats the report as text.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "TCP at {MBIT_PER_SECOND} Mbit/s, {} s beside each attack, medians of {} rounds; {} busy loops\n\
             {} cores ({:.2} of them busy before), {}, Linux {}\n",
            self.seconds,
            self.rounds,
            self.busy_loops,
            self.machine.cores,
            self.busy_cores_before,
            self.machine.processor,
            self.machine.kernel
        );
        for part in &self.attacks {
            let _ = writeln!(text, "\n{}", part.attack);
            for (side, figures) in self.sides.iter().zip(&part.figures) {
                if !figures.is_empty() {
                    text += &side_line(&side.name, figures);
                }
            }
            for wanted in self.wanted(part) {
                let _ = writeln!(text, "  {wanted}");
            }
        }
        text + &output::notes(&self.notes, self.busy_cores_before)
    }

    /// Formats each weft's targets beside an attack, and whether they hold.
    fn wanted(&self, part: &Part) -> Vec<String> {
        let mut lines = Vec::new();
        for (place, side) in self.sides.iter().enumerate().filter(|(_, side)| side.is_weft) {
            let figures = &part.figures[place];
            if figures.is_empty() {
                continue;
            }
            let mut wants = Vec::new();
            let mut want = |text: String, holds: bool| {
                wants.push(format!("{text} {}", if holds { "✓" } else { "✗" }));
            };
            if part.attack.kind.is_aimed() {
                if let Some(beside) = self.not_aimed(part.attack, place).filter(|beside| !beside.is_empty()) {
                    let (aimed, other) = (median(figures, |f| f.mbit), median(beside, |f| f.mbit));
                    let text = format!("≥ {ALIKE} of that beside data that is not aimed ({other:.1} Mbit/s)");
                    want(text, aimed >= ALIKE * other);
                }
            } else {
                want(format!("TCP ≥ {KEPT}"), median(figures, |f| f.ratio) >= KEPT);
            }
            if !part.attack.kind.is_of_peer() && !part.attack.kind.is_aimed() {
                for (other, theirs) in
                    self.sides.iter().zip(&part.figures).filter(|(other, _)| !other.is_weft)
                {
                    if let Some(ratio) = ratios(figures.iter().zip(theirs).map(|(a, b)| (a.mbit, b.mbit))) {
                        let text = format!("as much as {} ({:.2})", other.name, ratio.median);
                        want(text, ratio.median >= AS_MUCH);
                    }
                }
                want(format!("ping p99 ≤ {PING_P99_MS} ms"), median(figures, |f| f.p99_ms) <= PING_P99_MS);
                if let Some(percent) = inner(figures, |inner| inner.handshakes_percent) {
                    want(format!("handshakes ≤ {HANDSHAKES_PERCENT} %"), percent <= HANDSHAKES_PERCENT);
                }
            }
            if part.attack.kind == Kind::Scan {
                if let Some(millis) = inner(figures, |inner| inner.turn_p999_ms) {
                    want(format!("turn p99.9 ≤ {TURN_P999_MS} ms"), millis <= TURN_P999_MS);
                }
                let all = figures.iter().all(|f| f.first_packets().0 == f.first_packets().1);
                want("no other peer's first packet lost".to_owned(), all);
            }
            let in_time = figures.iter().all(|f| f.tries().is_some_and(|tries| tries <= TRIES));
            want("strangers in within two retries".to_owned(), in_time);
            lines.push(format!("{} wanted: {}", side.name, wants.join(", ")));
        }
        lines
    }

    /// Returns a side's figures beside unaimed data for unknown receivers at the same rate and of the same
    /// family.
    fn not_aimed(&self, attack: Attack, side: usize) -> Option<&[Figures]> {
        let same = |other: &&Part| {
            other.attack.kind == Kind::Data
                && other.attack.per_second == attack.per_second
                && other.attack.is_v6 == attack.is_v6
        };
        self.attacks.iter().find(same).map(|part| part.figures[side].as_slice())
    }
}

fn side_line(name: &str, figures: &[Figures]) -> String {
    let middle = |of: fn(&Figures) -> f64| median(figures, of);
    let ratio = Summary::of(figures.iter().map(|figures| figures.ratio));
    let (lowest, highest) = ratio.map_or((0.0, 0.0), |ratio| (ratio.lowest, ratio.highest));
    let worst = figures.iter().map(|figures| figures.tries().unwrap_or(u64::MAX)).max().unwrap_or(0);
    let tries = if worst == u64::MAX { "not all".to_owned() } else { format!("with {worst} at most") };
    let mut text = format!(
        "  {name:<14} {:>6.1} of {:>5.1} Mbit/s, {:.2} ({lowest:.2} to {highest:.2}); ping {:.2} / {:.2} ms ({:.2} at \
         rest), {} lost; CPU {:.0} %; strangers in {tries}; {:.0}/s, {:.0}/s proven\n",
        middle(|f| f.mbit),
        middle(|f| f.rest_mbit),
        middle(|f| f.ratio),
        middle(|f| f.p50_ms),
        middle(|f| f.p99_ms),
        middle(|f| f.rest_p99_ms),
        figures.iter().map(|figures| figures.pings_lost).sum::<usize>(),
        middle(|f| f.cpu_percent),
        middle(|f| f.sent_per_second),
        middle(|f| f.proven_per_second),
    );
    let inside = |of: fn(&Inner) -> f64| inner(figures, of);
    if let (Some(handshakes), Some(turn), Some(full), Some(overflows)) = (
        inside(|inner| inner.handshakes_percent),
        inside(|inner| inner.turn_p999_ms),
        inside(|inner| inner.staging_full as f64),
        inside(|inner| inner.receive_overflows as f64),
    ) {
        let _ = writeln!(
            text,
            "  {:<14} handshakes {handshakes:.1} % of the packet thread, turn p99.9 {turn:.2} ms, {full:.0} packets of \
             full staging, {overflows:.0} datagrams did not fit the sockets",
            ""
        );
    }
    let (arrived, all) =
        figures.iter().map(Figures::first_packets).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    if all > 0 {
        let slowest = figures.iter().flat_map(|f| f.visits.first_packets.iter().flatten()).copied();
        let slowest = Summary::of(slowest).map_or(0.0, |all| all.highest);
        let _ = writeln!(
            text,
            "  {:<14} first packets to other peers: {arrived} of {all} arrived, the slowest in {slowest:.0} ms",
            ""
        );
    }
    text
}

fn median(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    Summary::of(figures.iter().map(of)).map_or(0.0, |summary| summary.median)
}

fn inner(figures: &[Figures], of: impl Fn(&Inner) -> f64) -> Option<f64> {
    Summary::of(figures.iter().filter_map(|figures| figures.weft.as_ref().map(&of))).map(|all| all.median)
}
