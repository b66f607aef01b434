//! `weft-bench stages`: the cost of each stage of the packet path by itself, and the limit of this machine.
//!
//! The limit is the path without a cipher (`null_path.rs`) plus the cipher alone (`cipher.rs`): weft cannot
//! cost less, so the ratio to the limit shows how much can still be gained.

use anyhow::Result;

use self::args::StagesArgs;
use self::floor::Floor;
use self::pipeline::{Pipeline, Shape};
use self::report::Report;
use crate::interrupt::Interrupt;
use crate::machine::{self, Machine};
use crate::stats::Summary;
use crate::{output, topology};

pub(crate) use times::StageCosts;

pub(crate) mod args;
mod cipher;
mod ends;
mod floor;
mod hand_over;
mod null_path;
mod pipeline;
mod report;
mod times;
mod transfer;
mod weft_path;

/// How long the machine's load is observed before the first measurement.
const WATCH: std::time::Duration = std::time::Duration::from_secs(1);

/// Measures and prints the report.
pub(crate) fn run(args: &StagesArgs, json: bool) -> Result<()> {
    topology::check_permission()?;
    let interrupt = Interrupt::watch()?;
    let busy_cores_before = machine::busy_cores(WATCH)?;
    let cipher = cipher::measure()?;
    let mut shapes = Vec::new();
    for shape in Shape::ALL {
        shapes.push(Pipeline::measure(shape, args.secs, &interrupt)?);
    }
    let hand_over = hand_over::measure()?;
    let floor = if args.no_floor { None } else { Some(Floor::measure(args, &cipher, &interrupt)?) };
    let report = Report {
        machine: Machine::this(),
        busy_cores_before,
        seconds: args.secs,
        shapes,
        hand_over,
        cipher,
        floor,
    };
    output::print(&report, json, report::text)
}

/// Measures the stages of long packets, and the hand-over to another packet thread in nanoseconds. Returns
/// the length of these packets, too.
pub(crate) fn of_long_packets(secs: u32, interrupt: &Interrupt) -> Result<(usize, StageCosts, Summary)> {
    let report = Pipeline::measure(Shape::ALL[0], secs, interrupt)?;
    Ok((report.packet_bytes, report.nanoseconds_per_packet, hand_over::measure()?))
}
