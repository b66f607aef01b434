//! `weft-bench link`: measures an emulated link and compares it with its specification.

mod measure;
mod report;

use anyhow::Result;
use clap::Args;
use weft_lab::emulator::LinkSpec;

use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::output;
use crate::progress::Progress;
use crate::topology::{Tunnel, Wire};

/// The MTU of a tunnel that would leave the link the MTU of Ethernet.
const MTU: u16 = 1420;

/// The arguments of `weft-bench link`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LinkArgs {
    /// The link, as keys and values with commas between them: rate=500mbit (whole Ethernet frames; without it
    /// no limit), delay=10ms (one way), queue=bdp|64kib|100p|20ms (drop-tail; bdp is rate × 2 × delay),
    /// loss=0.1%, reorder=0.5% (the share of frames that come late) with reorder-by=1ms, seed=1.
    #[arg(value_name = "SPEC")]
    pub(crate) spec: LinkSpec,
    /// How long each measurement takes, in seconds.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=600))]
    pub(crate) secs: u32,
}

/// Measures and prints the report.
pub(crate) fn run(args: &LinkArgs, json: bool) -> Result<()> {
    let interrupt = Interrupt::watch()?;
    let progress = Progress::new(0);
    let wire = Wire::Emulated(args.spec.clone());
    let link = Tunnel::start(&Implementation::Bare, &wire, MTU, None, &interrupt)?;
    let report = measure::all(&link, args, &progress, &interrupt)?;
    output::print(&report, json, report::text)
}
