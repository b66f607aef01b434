//! `weft-bench compare`: every implementation has its turn in every case of every round.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::cli::CompareArgs;
use crate::interrupt::Interrupt;
use crate::iperf::{self, CASES, Sample};
use crate::machine::{self, Machine};
use crate::peers::{self, Implementation};
use crate::progress::Progress;
use crate::report::{self, CaseReport, Report};
use crate::topology::Tunnel;

/// How long the machine is watched before the first measurement.
const WATCH: Duration = Duration::from_secs(1);

/// Measures and prints the report.
pub(crate) fn run(args: &CompareArgs) -> Result<()> {
    let weft = peers::weft_path(args)?;
    let implementations = Implementation::all(args, &weft);
    let interrupt = Interrupt::watch()?;
    let measurements = args.rounds as usize * CASES.len() * implementations.len();
    let mut progress = Progress::new(measurements);
    let busy_cores_before = machine::busy_cores(WATCH)?;
    let mut tunnels = Vec::new();
    for implementation in &implementations {
        progress.say(&format!("bringing up {}", implementation.name()));
        tunnels.push(Tunnel::start(implementation, &weft, &interrupt)?);
    }

    let mut samples = vec![vec![Vec::<Sample>::new(); implementations.len()]; CASES.len()];
    for round in 0..args.rounds as usize {
        for (case, samples) in CASES.into_iter().zip(&mut samples) {
            for place in turns(round, implementations.len()) {
                let name = implementations[place].name();
                let sample = iperf::measure(&mut tunnels[place], case, args.secs, &interrupt)
                    .with_context(|| format!("{}, {name}", case.name))?;
                progress.measured(case.name, name, &sample);
                samples[place].push(sample);
            }
        }
    }

    let cases = CASES.into_iter().zip(samples).map(|(case, samples)| {
        let names = implementations.iter().map(|implementation| implementation.name().to_owned());
        CaseReport::new(case.name, &names.zip(samples).collect::<Vec<_>>())
    });
    let report = Report {
        machine: Machine::this(),
        seconds: args.secs,
        rounds: args.rounds,
        tun_threads: args.tun_threads.to_string(),
        busy_cores_before,
        cases: cases.collect::<Option<_>>().context("nothing was measured")?,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report::text(&report));
    }
    Ok(())
}

/// The order of a round: another one begins each time, so that none is always first.
fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (round + turn) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_turn_a_round_and_another_begins() {
        let order = |round| turns(round, 3).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }
}
