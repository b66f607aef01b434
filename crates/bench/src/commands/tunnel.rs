//! `weft-bench tunnel`: weft, beside the same link without a tunnel.

use anyhow::Result;

use super::{bare, measure, wefts};
use crate::cli::TunnelArgs;
use crate::rounds::Plan;
use crate::topology::Wire;
use crate::{plot, report};

/// Measures and prints the report.
pub(super) fn run(args: &TunnelArgs) -> Result<()> {
    let mut subjects = wefts(&args.setting, &args.measure)?;
    if !args.no_bare {
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
        plot::write(path, &report::plots::speeds(&report).svg()?)?;
    }
    report::check(&report)
}
