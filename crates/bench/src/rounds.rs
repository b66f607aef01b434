//! Every subject has a turn in every case of every round, so that drift in the machine's speed affects all
//! alike. Each round starts new daemons: two processes of the same program differ by up to a tenth, depending
//! on their memory layout, so rounds of one process would agree on a figure that its next start does not
//! reproduce.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::batches::Batches;
use crate::case::Case;
use crate::congestion;
use crate::implementation::Implementation;
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine;
use crate::measure::{Bench, measure, system_calls};
use crate::metric::Sample;
use crate::progress::Progress;
use crate::tools;
use crate::topology::{self, Tunnel, Wire};

/// How long the machine's load is observed before the first measurement.
const WATCH: Duration = Duration::from_secs(1);

/// An implementation in one setting.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Name in tables.
    pub(crate) name: String,
    pub(crate) implementation: Implementation,
    /// MTU of the tunnel in bytes.
    pub(crate) mtu: u16,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) cases: Vec<Case>,
    pub(crate) wire: Wire,
    /// TCP's congestion control; `None` for the machine's default.
    pub(crate) congestion: Option<String>,
    pub(crate) secs: u32,
    pub(crate) rounds: u32,
    /// Whether to count system calls after the rounds.
    pub(crate) system_calls: bool,
}

/// The results of one subject in one case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    /// By round; `None` where the measurement failed.
    pub(crate) samples: Vec<Option<Sample>>,
    /// weft's sends in all rounds, by batch size; `None` where no daemon reports them.
    pub(crate) batches: Option<Batches>,
    /// System calls per Gbit; `None` where they were not counted.
    pub(crate) system_calls_per_gbit: Option<f64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Results {
    /// By case, then by subject.
    pub(crate) cells: Vec<Vec<Cell>>,
    /// TCP's congestion control in all the namespaces.
    pub(crate) congestion: String,
    /// Cores that were busy with other work before the first measurement.
    pub(crate) busy_cores_before: f64,
    /// Cores that the host of this virtual machine gave to others during the measurements.
    pub(crate) stolen_cores: f64,
    /// Measurements that failed or were skipped.
    pub(crate) failed: usize,
    /// Failures, and figures that could not be counted.
    pub(crate) notes: Vec<String>,
}

/// Measures everything.
///
/// # Errors
/// When the tunnels cannot be brought up, or a signal arrives. A measurement that fails only adds a note.
pub(crate) fn run(plan: &Plan) -> Result<Results> {
    if let Some(control) = &plan.congestion {
        congestion::check(std::slice::from_ref(control), &congestion::available()?)?;
    }
    topology::check_permission()?;
    tools::check(&plan.cases, plan.subjects.iter().map(|subject| &subject.implementation))?;
    let interrupt = Interrupt::watch()?;
    let schedule = schedule(plan);
    let (planned, mut measured_well) = (schedule.len(), 0);
    let mut progress = Progress::new(planned);
    let busy_cores_before = machine::busy_cores(WATCH)?;
    let mut tunnels = bring_up(plan, &progress, &interrupt)?;
    let tunnel = tunnels.first().context("there is nothing to measure")?;
    let congestion = congestion::in_use(&tunnel.near)?;

    let mut cells = vec![vec![Cell::default(); plan.subjects.len()]; plan.cases.len()];
    let mut notes = Vec::new();
    let (watch, stolen_before) = (std::time::Instant::now(), machine::stolen_time()?);
    progress.begin();
    let mut round = 0;
    for turn in schedule {
        if turn.round != round {
            round = turn.round;
            // Drop the old daemons first: daemons beside the measured ones use memory and wake up.
            tunnels.clear();
            match kept(bring_up(plan, &progress, &interrupt), "the rounds end here", &mut notes)? {
                Some(fresh) => tunnels = fresh,
                None => break,
            }
        }
        let (case, name) = (plan.cases[turn.case], &plan.subjects[turn.subject].name);
        let mut bench = Bench { tunnel: &mut tunnels[turn.subject], secs: plan.secs, interrupt: &interrupt };
        let what = format!("{case}, {name}");
        let measured = kept(measure(&mut bench, case), &what, &mut notes)?;
        if let Some(note) = measured.as_ref().and_then(|measured| measured.note.as_ref()) {
            notes.push(format!("{what}: {note}"));
        }
        let cell = &mut cells[turn.case][turn.subject];
        if let Some(batches) = measured.as_ref().and_then(|measured| measured.batches) {
            cell.batches = Some(cell.batches.into_iter().chain([batches]).sum());
        }
        let sample = measured.map(|measured| measured.sample);
        progress.measured(case, name, sample.as_ref().ok_or(notes.last().map_or("", |note| note)));
        measured_well += usize::from(sample.is_some());
        cell.samples.push(sample);
    }
    let failed = planned - measured_well;
    let stolen = machine::stolen_time()?.saturating_sub(stolen_before);
    let stolen_cores = stolen.as_secs_f64() / watch.elapsed().as_secs_f64();

    if plan.system_calls {
        progress.say("counting system calls");
        count_system_calls(plan, &mut tunnels, &interrupt, &mut cells, &mut notes)?;
    }
    Ok(Results { cells, congestion, busy_cores_before, stolen_cores, failed, notes })
}

/// Brings up a tunnel for each subject.
fn bring_up(plan: &Plan, progress: &Progress, interrupt: &Interrupt) -> Result<Vec<Tunnel>> {
    let start = |Subject { name, implementation, mtu }: &Subject| {
        progress.say(&format!("bringing up {name}"));
        Tunnel::start(implementation, &plan.wire, *mtu, plan.congestion.as_deref(), interrupt)
            .with_context(|| format!("cannot bring up {name}"))
    };
    plan.subjects.iter().map(start).collect()
}

/// Passes on an interruption; turns any other error into a note and returns `None`, so that the measurements
/// continue.
fn kept<T>(result: Result<T>, what: &str, notes: &mut Vec<String>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.downcast_ref::<Interrupted>().is_some() => Err(error),
        Err(error) => {
            notes.push(format!("{what}: {error:#}"));
            Ok(None)
        }
    }
}

fn count_system_calls(
    plan: &Plan,
    tunnels: &mut [Tunnel],
    interrupt: &Interrupt,
    cells: &mut [Vec<Cell>],
    notes: &mut Vec<String>,
) -> Result<()> {
    let (program, package) = tools::PERF;
    if !tools::is_installed(program) {
        notes.push(format!("system calls are not counted: {program} is not installed (Debian: {package})"));
        return Ok(());
    }
    for (case, cells) in plan.cases.iter().zip(cells) {
        for (tunnel, cell) in tunnels.iter_mut().zip(cells) {
            let mut bench = Bench { tunnel, secs: plan.secs, interrupt };
            match kept(system_calls::per_gbit(&mut bench, *case), "system calls are not counted", notes)? {
                Some(calls) => cell.system_calls_per_gbit = calls,
                // It fails for all if it fails for one.
                None => return Ok(()),
            }
        }
    }
    Ok(())
}

/// One measurement: its round, and the indices of its case and its subject in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    round: usize,
    case: usize,
    subject: usize,
}

/// Orders the measurements by round and case; the subject that begins changes from round to round.
fn schedule(plan: &Plan) -> Vec<Turn> {
    let mut turns = Vec::new();
    let count = plan.subjects.len();
    for round in 0..plan.rounds as usize {
        for (place, case) in plan.cases.iter().enumerate() {
            // A case measured once comes in the last round, after the load of all others.
            if case.once() && round + 1 < plan.rounds as usize {
                continue;
            }
            for turn in 0..count {
                let subject = (round + turn) % count;
                let implementation = &plan.subjects[subject].implementation;
                let bare = matches!(implementation, Implementation::Bare);
                let is_cold = matches!(case, Case::ColdStart { .. });
                if !(bare && case.needs_daemon() || is_cold && !implementation.passes_half_closes()) {
                    turns.push(Turn { round, case: place, subject });
                }
            }
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(cases: Vec<Case>) -> Plan {
        let subject =
            |name: &str, implementation| Subject { name: name.to_owned(), implementation, mtu: 1420 };
        let other = || Implementation::Other("x=x {interface}".parse().unwrap());
        let subjects = vec![subject("a", other()), subject("b", other()), subject("c", Implementation::Bare)];
        Plan { subjects, cases, wire: Wire::Veth, congestion: None, secs: 1, rounds: 2, system_calls: false }
    }

    fn turns(cases: Vec<Case>) -> Vec<(usize, usize)> {
        schedule(&plan(cases)).into_iter().map(|turn| (turn.case, turn.subject)).collect()
    }

    #[test]
    fn each_has_one_turn_a_round_and_another_begins() {
        assert_eq!(turns(vec![Case::Ping]), [(0, 0), (0, 1), (0, 2), (0, 1), (0, 2), (0, 0)]);
    }

    #[test]
    fn memory_is_looked_at_once_at_the_end_and_only_where_there_is_a_daemon() {
        assert_eq!(turns(vec![Case::Memory]), [(0, 1), (0, 0)]);
    }

    #[test]
    fn a_failure_is_a_note_and_a_signal_is_the_end() {
        let mut notes = Vec::new();
        assert_eq!(kept::<u8>(Err(anyhow::anyhow!("no")), "x", &mut notes).unwrap(), None);
        assert_eq!(notes, ["x: no"]);
        assert!(kept::<u8>(Err(Interrupted.into()), "x", &mut notes).is_err());
    }
}
