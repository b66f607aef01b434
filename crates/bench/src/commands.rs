//! Dispatch of the commands, and what they share.

use anyhow::Result;

use crate::case::Case;
use crate::cli::{Cli, Command, CompareArgs, MeasureArgs, SettingArgs, TunnelArgs};
use crate::implementation::{Implementation, check_names};
use crate::output;
use crate::plot::{self, Bars};
use crate::report::{self, Report, plots};
use crate::rounds::{self, Plan, Subject};
use crate::topology::Wire;
use crate::{floods, link, peers, rootless, rtt, shards, soak, stages};

mod sweep;

/// The name of the bare link in tables.
const BARE: &str = "no tunnel";

pub(crate) fn run(cli: &Cli) -> Result<()> {
    let json = cli.json;
    match &cli.command {
        Command::Tunnel(args) => tunnel(args, json),
        Command::Compare(args) => compare(args, json),
        Command::Sweep(args) => sweep::run(args, json),
        Command::Stages(args) => stages::run(args, json),
        Command::Link(args) => link::run(args, json),
        Command::Rtt(args) => rtt::run(args, json),
        Command::Peers(args) => peers::run(args, json),
        Command::Floods(args) => floods::run(args, json),
        Command::Shards(args) => shards::run(args, json),
        Command::Rootless(args) => rootless::run(args, json),
        Command::Soak(args) => soak::run(args, json),
    }
}

/// `weft-bench tunnel`: measures weft, beside the same link without a tunnel.
fn tunnel(args: &TunnelArgs, json: bool) -> Result<()> {
    let mut subjects = wefts(&args.setting, &args.measure)?;
    if !args.no_bare {
        subjects.push(bare(&args.setting));
    }
    measure_and_print(subjects, args.cases.cases(), &args.setting, &args.measure, json, plots::speeds)
}

/// `weft-bench compare`: measures weft beside other implementations.
fn compare(args: &CompareArgs, json: bool) -> Result<()> {
    let mut subjects = wefts(&args.setting, &args.measure)?;
    subjects.extend(args.peers.iter().map(|peer| Subject {
        name: peer.name.clone(),
        implementation: Implementation::Other(peer.clone()),
        mtu: args.setting.mtu,
    }));
    if args.bare {
        subjects.push(bare(&args.setting));
    }
    measure_and_print(subjects, args.cases.cases(), &args.setting, &args.measure, json, plots::ratios)
}

fn measure_and_print(
    subjects: Vec<Subject>,
    cases: Vec<Case>,
    setting: &SettingArgs,
    args: &MeasureArgs,
    json: bool,
    plot: fn(&Report) -> Bars,
) -> Result<()> {
    let report = measure(&Plan {
        subjects,
        cases,
        wire: Wire::from(setting.link.clone()),
        congestion: args.congestion.clone(),
        secs: args.secs,
        rounds: args.rounds,
        system_calls: !args.no_system_calls,
    })?;
    output::print(&report, json, report::tables::text)?;
    if let Some(path) = &args.svg {
        plot::write(path, &plot(&report).svg()?)?;
    }
    output::check(report.failed)
}

/// Creates a subject for each weft of the command line.
fn wefts(setting: &SettingArgs, args: &MeasureArgs) -> Result<Vec<Subject>> {
    let subject = |command| {
        let implementation = Implementation::weft(command, setting.tun_threads, args.offload)?;
        Ok(Subject { name: command.name.clone(), implementation, mtu: setting.mtu })
    };
    args.wefts.commands().iter().map(subject).collect()
}

fn bare(setting: &SettingArgs) -> Subject {
    Subject { name: BARE.to_owned(), implementation: Implementation::Bare, mtu: setting.mtu }
}

/// Checks the names, measures and creates the report.
fn measure(plan: &Plan) -> Result<Report> {
    check_names(plan.subjects.iter().map(|subject| subject.name.as_str()))?;
    Ok(report::new(plan, rounds::run(plan)?))
}
