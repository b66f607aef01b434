//! `weft-bench stages`: the cost of each stage of the packet path by itself.

use anyhow::Result;
use clap::Args;

use self::pipeline::Shape;
use crate::args::TimeArgs;
use crate::interrupt::Interrupt;
use crate::report::{Figure, Report, Sample};
use crate::topology;

mod ends;
mod hand_over;
mod pipeline;
pub(crate) mod times;

/// For each packet of a super-packet, with several packet threads.
const HAND_OVER: Figure = Figure::new("hand_over_ns", "ns per packet", 1);

/// The arguments of `weft-bench stages`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    pub(crate) times: TimeArgs,
}

/// Measures and prints the report.
pub(crate) fn run(args: &StagesArgs, json: bool) -> Result<()> {
    topology::check_permission()?;
    let interrupt = Interrupt::watch()?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report = Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("MTU", &ends::MTU)])?;
    let mut measure = || -> Result<()> {
        for _ in 0..rounds {
            for shape in Shape::ALL {
                let costs = pipeline::measure(shape, secs, &interrupt);
                report.attempt("ns per packet", shape, "", costs.map(|costs| costs.sample(shape.packet)))?;
            }
            let sample = hand_over::measure().map(|ns| Sample::default().with(HAND_OVER, ns));
            report.attempt("hand-over", "to another packet thread", "", sample)?;
        }
        Ok(())
    };
    let ended = measure();
    report.finish(ended, json)
}

/// Measures the stages of long packets, and the hand-over to another packet thread in nanoseconds. Returns
/// the length of these packets, too.
pub(crate) fn of_long_packets(secs: u32, interrupt: &Interrupt) -> Result<(usize, times::Costs, f64)> {
    let shape = Shape::ALL[0];
    Ok((shape.packet, pipeline::measure(shape, secs, interrupt)?, hand_over::measure()?))
}
