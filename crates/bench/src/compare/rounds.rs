//! Every subject has a turn in every case of every round, so that drift in the machine's speed affects all
//! alike. Each round starts new daemons: two processes of the same program differ by up to a tenth, depending
//! on their memory layout, so rounds of one process would agree on a figure that its next start does not
//! reproduce.

use anyhow::{Context as _, Result};

use super::bench::Bench;
use super::case::Case;
use super::measure::measure;
use crate::args::turns;
use crate::congestion;
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::report::{Report, Sample};
use crate::tools;
use crate::topology::{self, Tunnel, Wire};

/// The title of the table of what the daemons spent.
const COST: &str = "cost of each Gbit in both daemons";

/// An implementation in one setting.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Name in tables.
    pub(crate) name: String,
    pub(crate) implementation: Implementation,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) cases: Vec<Case>,
    pub(crate) wire: Wire,
    /// The name of the wire in the names of the cases; empty if there is only one.
    pub(crate) wire_name: String,
    /// MTU of the tunnels in bytes.
    pub(crate) mtu: u16,
    /// TCP's congestion control; `None` for the machine's default.
    pub(crate) congestion: Option<String>,
    pub(crate) secs: u32,
    pub(crate) rounds: u32,
}

impl Plan {
    /// Returns the name of a case in the report.
    pub(crate) fn label(&self, case: Case) -> String {
        if self.wire_name.is_empty() { case.to_string() } else { format!("{case} {}", self.wire_name) }
    }

    /// Returns an error if the congestion control, a permission or a program is missing.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(control) = &self.congestion {
            congestion::check(std::slice::from_ref(control), &congestion::available()?)?;
        }
        topology::check_permission()?;
        let programs = self.cases.iter().flat_map(|case| case.tools()).copied();
        tools::check(programs, self.subjects.iter().map(|subject| &subject.implementation))
    }

    /// Measures everything, and adds it to the report.
    ///
    /// # Errors
    /// When the first tunnels cannot be brought up, or a signal arrives. A measurement that fails only adds a
    /// note, and tunnels that cannot be brought up again end the rounds.
    pub(crate) fn run(&self, report: &mut Report, interrupt: &Interrupt) -> Result<()> {
        for round in 0..self.rounds as usize {
            // The daemons of the round before have ended: others beside the measured ones use memory and wake
            // up.
            let mut tunnels = self.bring_up(interrupt)?;
            if round == 0 {
                let tunnel = tunnels.first().context("there is nothing to measure")?;
                report.set("congestion control", congestion::in_use(&tunnel.near)?);
            }
            for (case, subject) in self.schedule(round) {
                let name = &self.subjects[subject].name;
                let mut bench = Bench { tunnel: &mut tunnels[subject], secs: self.secs, interrupt };
                let (label, mut cost) = (self.label(case), Sample::default());
                let measured = measure(&mut bench, case).map(|outcome| {
                    cost = outcome.cost;
                    if let Some(note) = outcome.note {
                        report.note(format!("{label}, {name}: {note}"));
                    }
                    outcome.sample
                });
                report.attempt(case.table(), &label, name, measured)?;
                if cost != Sample::default() {
                    report.add(COST, &label, name, cost);
                }
            }
        }
        Ok(())
    }

    /// Brings up a tunnel for each subject.
    fn bring_up(&self, interrupt: &Interrupt) -> Result<Vec<Tunnel>> {
        let start = |Subject { name, implementation }: &Subject| {
            eprintln!("bringing up {name}");
            Tunnel::start(implementation, &self.wire, self.mtu, self.congestion.as_deref(), interrupt)
                .with_context(|| format!("cannot bring up {name}"))
        };
        self.subjects.iter().map(start).collect()
    }

    /// Orders the measurements of a round by case, each with the index of its subject.
    fn schedule(&self, round: usize) -> Vec<(Case, usize)> {
        let is_last = round + 1 == self.rounds as usize;
        // A case measured once comes in the last round, after the load of all others.
        let cases = self.cases.iter().filter(|case| is_last || !case.is_of_daemons());
        let turns = cases.flat_map(|case| turns(self.subjects.len(), round).map(|subject| (*case, subject)));
        let can = |(case, subject): &(Case, usize)| {
            let implementation = &self.subjects[*subject].implementation;
            let is_cold = matches!(case, Case::ColdStart { .. });
            !(matches!(implementation, Implementation::Bare) && case.is_of_daemons()
                || is_cold && !implementation.passes_half_closes())
        };
        turns.filter(can).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns_of(case: Case, round: usize) -> Vec<usize> {
        let subject = |name: &str, implementation| Subject { name: name.to_owned(), implementation };
        let other = || Implementation::Other("x=x {interface}".parse().unwrap());
        let plan = Plan {
            subjects: vec![subject("a", other()), subject("b", other()), subject("c", Implementation::Bare)],
            cases: vec![case],
            wire: Wire::Veth,
            wire_name: String::new(),
            mtu: 1420,
            congestion: None,
            secs: 1,
            rounds: 2,
        };
        plan.schedule(round).into_iter().map(|(_, subject)| subject).collect()
    }

    #[test]
    fn each_has_one_turn_a_round_and_another_begins() {
        assert_eq!((turns_of(Case::Ping, 0), turns_of(Case::Ping, 1)), (vec![0, 1, 2], vec![1, 2, 0]));
    }

    #[test]
    fn memory_is_looked_at_once_at_the_end_and_only_where_there_is_a_daemon() {
        assert_eq!((turns_of(Case::Memory, 0), turns_of(Case::Memory, 1)), (vec![], vec![1, 0]));
    }
}
