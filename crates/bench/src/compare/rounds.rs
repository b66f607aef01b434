//! Every side has a turn in every case of every round, so that drift in the machine's speed affects all
//! alike. Each round starts new daemons: two processes of the same program differ by up to a tenth, depending
//! on their memory layout, so rounds of one process would agree on a figure that its next start does not
//! reproduce.

use anyhow::{Context as _, Result};
use weft_lab::emulator::LinkSpec;

use super::bench::Bench;
use super::case::Case;
use super::measure::measure;
use crate::args::{TimeArgs, turns};
use crate::implementation::{self, Kind, Side};
use crate::interrupt::Interrupt;
use crate::report::{Report, Sample};
use crate::site;
use crate::topology::Tunnel;

const COST: &str = "cost of each Gbit in both daemons";

/// What to measure, and how.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) sides: Vec<Side>,
    pub(crate) cases: Vec<Case>,
    /// A link with rate, delay, queue, losses and reordering; without one a veth pair.
    pub(crate) link: Option<LinkSpec>,
    /// The name of the link in the names of the cases; empty if there is only one.
    pub(crate) link_name: String,
    /// TCP's congestion control, which each socket asks for: a namespace may not use as its default what the
    /// machine does not allow to all. `None` for the machine's default.
    pub(crate) control: Option<String>,
    pub(crate) times: TimeArgs,
}

impl Plan {
    pub(crate) fn label(&self, case: Case) -> String {
        format!("{case} {}", self.link_name).trim_end().to_owned()
    }

    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Side> {
        self.sides.iter().filter(move |side| side.kind() == kind)
    }

    /// Returns an error if the congestion control or a permission is missing.
    pub(crate) fn check(&self) -> Result<()> {
        site::congestion_controls(self.control.as_slice())?;
        site::check_permission()?;
        implementation::check(&self.sides)
    }

    /// Measures everything, and adds it to the report.
    ///
    /// # Errors
    /// When tunnels cannot be brought up, or a signal arrives. A measurement that fails only adds a note.
    pub(crate) fn run(&self, report: &mut Report, interrupt: &Interrupt) -> Result<()> {
        for round in 0..self.times.rounds as usize {
            // The daemons of the round before have ended: others beside the measured ones use memory and wake
            // up.
            let start = |side| Tunnel::start(side, self.link.as_ref(), interrupt);
            let tunnels = self.sides.iter().map(start).collect::<Result<Vec<_>>>()?;
            let tunnel = tunnels.first().context("there is nothing to measure")?;
            report.set("congestion control", self.control.clone().map_or_else(|| tunnel.congestion(), Ok)?);
            let is_last = round + 1 == self.times.rounds as usize;
            // A case measured once comes in the last round, after the load of all others.
            for &case in self.cases.iter().filter(|case| is_last || !case.is_of_daemons()) {
                for place in turns(self.sides.len(), round).filter(|place| can(&self.sides[*place], case)) {
                    let (label, name) = (self.label(case), &self.sides[place].name);
                    let bench = Bench {
                        tunnel: &tunnels[place],
                        secs: self.times.secs,
                        interrupt,
                        control: self.control.as_deref(),
                    };
                    let mut cost = Sample::default();
                    let measured = measure(bench, case).map(|outcome| {
                        cost = outcome.cost;
                        outcome.sample
                    });
                    report.attempt(case.table(), &label, name, measured)?;
                    if cost != Sample::default() {
                        report.add(COST, &label, name, cost);
                    }
                }
            }
        }
        Ok(())
    }
}

fn can(side: &Side, case: Case) -> bool {
    side.kind() != Kind::Bare || !case.is_of_daemons()
}
