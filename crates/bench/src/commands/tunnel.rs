//! `weft-bench tunnel`: weft, beside the same link without a tunnel.

use anyhow::Result;

use super::{bare, measure_and_print, wefts};
use crate::cli::TunnelArgs;
use crate::rounds::Plan;
use crate::topology::Wire;

/// Measures and prints the report.
pub(super) fn run(args: &TunnelArgs) -> Result<()> {
    let mut subjects = wefts(&args.measure)?;
    if !args.no_bare {
        subjects.push(bare(&args.measure));
    }
    let plan = Plan {
        subjects,
        cases: args.cases.cases(),
        wire: Wire::default(),
        secs: args.measure.secs,
        rounds: args.measure.rounds,
        system_calls: !args.measure.no_system_calls,
    };
    measure_and_print(&plan, &args.measure)
}
