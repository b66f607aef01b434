//! `weft-bench compare`: weft beside other implementations.

use anyhow::Result;

use super::{bare, measure, wefts};
use crate::cli::CompareArgs;
use crate::implementation::Implementation;
use crate::rounds::{Plan, Subject};
use crate::topology::Wire;
use crate::{plot, report};

/// Measures and prints the report.
pub(super) fn run(args: &CompareArgs) -> Result<()> {
    let mut subjects = wefts(&args.setting, &args.measure)?;
    subjects.extend(args.peers.iter().map(|peer| Subject {
        name: peer.name.clone(),
        implementation: Implementation::Other(peer.clone()),
        mtu: args.setting.mtu,
    }));
    if args.bare {
        subjects.push(bare(&args.setting));
    }
    let report = measure(&Plan {
        subjects,
        cases: args.cases.cases(),
        wire: Wire::from(args.setting.link.clone()),
        congestion: args.measure.congestion.clone(),
        secs: args.measure.secs,
        rounds: args.measure.rounds,
        system_calls: !args.measure.no_system_calls,
    })?;
    report::print(&report, args.measure.json)?;
    if let Some(path) = &args.measure.svg {
        plot::write(path, &report::plots::ratios(&report).svg()?)?;
    }
    report::check(&report)
}
