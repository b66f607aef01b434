//! `weft-bench shards`: what several packet threads carry together, beside one.
//!
//! The gateway is fed so cheaply that it is measured alone: its peers' messages are sealed before the
//! measurement and sent as super-packets, what it opens is dropped by the kernel behind its TUN, and what it
//! sends is not read. Its own counters show what it handled. Every measurement starts a gateway.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

pub(crate) use args::ShardsArgs;

use self::model::Model;
use self::report::{ModelReport, Report};
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine::{self, Machine};
use crate::{output, stages, topology};

mod args;
mod cipher;
mod distance;
mod measure;
mod model;
mod pace;
mod report;
mod site;

/// How long the machine's load is observed before the first measurement.
const WATCH: Duration = Duration::from_secs(1);

/// Measures and prints the report.
pub(crate) fn run(args: &ShardsArgs, json: bool) -> Result<()> {
    let largest = args.packet_threads.iter().max().context("no number of packet threads")?;
    ensure!(
        largest.get() <= args.peers,
        "{largest} packet threads need as many --peers, each of which one of them serves"
    );
    topology::check_permission()?;
    let interrupt = Interrupt::watch()?;
    let busy_cores_before = machine::busy_cores(WATCH)?;
    if args.model {
        return print_model(args, json, busy_cores_before, &interrupt);
    }
    let mut report = Report::new(args, Machine::this(), busy_cores_before);
    let measured = rounds(args, &interrupt, &mut report);
    report.finish();
    if let Err(error) = &measured {
        report.notes.push(format!("it ended early: {error:#}"));
    }
    output::print(&report, json, Report::text)?;
    measured?;
    output::check(report.failed)
}

/// Measures every case in each round, those to be compared one after the other. The one that begins changes
/// from round to round.
fn rounds(args: &ShardsArgs, interrupt: &Interrupt, report: &mut Report) -> Result<()> {
    let cases = args.cases();
    for round in 0..args.rounds as usize {
        for number in 0..report.cipher.len() {
            let cipher = &mut report.cipher[number];
            let speed = cipher::speed(cipher.threads.into())?;
            cipher.gbit_per_second.push(speed.gbit_per_second);
            cipher.gbit_per_cpu_second.push(speed.gbit_per_cpu_second);
            interrupt.check()?;
        }
        for turn in 0..cases.len() {
            let number = (round + turn) % cases.len();
            let case = cases[number];
            match measure::measure(case, args.peers.into(), args.secs, interrupt) {
                Ok(figures) => {
                    eprintln!("{case:<36} {:6.2} Gbit/s", figures.gbit_per_second);
                    report.add(number, Some(figures));
                }
                Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
                Err(error) => {
                    report.add(number, None);
                    report.fail(format!("{}: {error:#}", case.to_string().trim_start()));
                }
            }
        }
    }
    Ok(())
}

/// Measures the stages and prints the model.
fn print_model(args: &ShardsArgs, json: bool, busy_cores_before: f64, interrupt: &Interrupt) -> Result<()> {
    let (packet_bytes, costs, hand_over) = stages::of_long_packets(args.secs, interrupt)?;
    let model = Model::new(&costs, hand_over.median, packet_bytes);
    let report = ModelReport { machine: Machine::this(), busy_cores_before, packet_bytes, model };
    output::print(&report, json, report::model_text)
}
