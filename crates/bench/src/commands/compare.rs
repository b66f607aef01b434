//! `weft-bench compare`: weft beside other implementations.

use anyhow::Result;

use super::{bare, measure_and_print, wefts};
use crate::cli::CompareArgs;
use crate::implementation::Implementation;
use crate::rounds::{Plan, Subject};
use crate::topology::Wire;

/// Measures and prints the report.
pub(super) fn run(args: &CompareArgs) -> Result<()> {
    let mut subjects = wefts(&args.measure)?;
    subjects.extend(args.peers.iter().map(|peer| Subject {
        name: peer.name.clone(),
        implementation: Implementation::Other(peer.clone()),
        mtu: args.measure.mtu,
    }));
    if args.bare {
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
