//! The commands.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::cli::{Command, MeasureArgs};
use crate::implementation::Implementation;
use crate::report;
use crate::rounds::{self, Plan, Subject};

mod compare;
mod tunnel;

/// What the tables call the link itself.
const BARE: &str = "no tunnel";

/// Runs a command.
pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Tunnel(args) => tunnel::run(args),
        Command::Compare(args) => compare::run(args),
    }
}

/// The wefts of the command line.
fn wefts(args: &MeasureArgs) -> Result<Vec<Subject>> {
    let subject = |command| {
        let implementation = Implementation::weft(command, args)?;
        Ok(Subject { name: command.name.clone(), implementation, mtu: args.mtu })
    };
    args.wefts().iter().map(subject).collect()
}

fn bare(args: &MeasureArgs) -> Subject {
    Subject { name: BARE.to_owned(), implementation: Implementation::Bare, mtu: args.mtu }
}

/// Measures, and prints the report.
fn measure_and_print(plan: &Plan, args: &MeasureArgs) -> Result<()> {
    let mut names = BTreeSet::new();
    for subject in &plan.subjects {
        ensure!(names.insert(&subject.name), "{} is there twice: give each a name of its own", subject.name);
    }
    let results = rounds::run(plan)?;
    report::print(&report::new(plan, results), args.json)
}
