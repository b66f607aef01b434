//! `weft-bench stages`: the cost of each stage of the packet path by itself.

use anyhow::Result;
use clap::Args;

use self::pipeline::Shape;
use crate::args::TimeArgs;
use crate::interrupt::Interrupt;
use crate::report::Report;
use crate::site::{self, MTU};

mod ends;
mod pipeline;
mod times;

/// The arguments of `weft-bench stages`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StagesArgs {
    #[command(flatten)]
    pub(crate) times: TimeArgs,
}

/// Measures and prints the report.
pub(crate) fn run(args: &StagesArgs, json: bool) -> Result<()> {
    site::check_permission()?;
    let interrupt = Interrupt::watch()?;
    let TimeArgs { secs, rounds } = args.times;
    let mut report = Report::begin(&[("rounds", &rounds), ("seconds", &secs), ("MTU", &MTU)])?;
    let mut measure = || -> Result<()> {
        for _ in 0..rounds {
            for shape in Shape::ALL {
                let costs = pipeline::measure(shape, secs, &interrupt);
                report.attempt("ns per packet", shape, "", costs.map(|costs| costs.sample(shape.packet)))?;
            }
        }
        Ok(())
    };
    let ended = measure();
    report.finish(ended, json)
}
