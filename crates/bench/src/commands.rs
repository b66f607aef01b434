//! Dispatch of the commands, and what they share.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::cli::{Command, MeasureArgs, SettingArgs};
use crate::implementation::Implementation;
use crate::report::{self, Report};
use crate::rounds::{self, Plan, Subject};
use crate::{floods, link, peers, rtt, stages};

mod compare;
mod sweep;
mod tunnel;

/// The name of the bare link in tables.
const BARE: &str = "no tunnel";

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Tunnel(args) => tunnel::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Stages(args) => stages::run(args),
        Command::Link(args) => link::run(args),
        Command::Rtt(args) => rtt::run(args),
        Command::Peers(args) => peers::run(args),
        Command::Floods(args) => floods::run(args),
    }
}

/// Creates a subject for each weft of the command line.
fn wefts(setting: &SettingArgs, args: &MeasureArgs) -> Result<Vec<Subject>> {
    let subject = |command| {
        let implementation = Implementation::weft(command, setting.tun_threads, args.offload)?;
        Ok(Subject { name: command.name.clone(), implementation, mtu: setting.mtu })
    };
    args.wefts().iter().map(subject).collect()
}

fn bare(setting: &SettingArgs) -> Subject {
    Subject { name: BARE.to_owned(), implementation: Implementation::Bare, mtu: setting.mtu }
}

/// Returns an error if two names are equal: their figures would be mixed.
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure!(seen.insert(name), "{name} occurs twice: give each a different name");
    }
    Ok(())
}

/// Checks the names, measures and creates the report.
fn measure(plan: &Plan) -> Result<Report> {
    check_names(plan.subjects.iter().map(|subject| subject.name.as_str()))?;
    Ok(report::new(plan, rounds::run(plan)?))
}
