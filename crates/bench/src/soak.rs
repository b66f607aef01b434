//! `weft-bench soak`: a gateway under all that happens to one, for hours, and whether anything grows, stalls
//! or is lost.
//!
//! A run is a row of intervals. In each there are bulk traffic, requests, pings, numbered flows and peers
//! that come, go and roam; in some there are a reload and a flood, and before some the daemon is restarted.
//! Numbered flows and pings begin and end with the interval, so that what they lost can be compared with what
//! was counted; streams, requests and ordered flows go on through restarts.

mod args;
mod figures;
mod load;
mod peers;
mod progress;
mod report;
mod requests;
mod run;
mod schedule;
mod service;
mod site;
mod trend;

use std::time::Duration;

use anyhow::{Result, ensure};

pub(crate) use args::SoakArgs;

use self::report::Report;
use crate::implementation::{Implementation, Offload};
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::{output, plot, topology};

/// The time that a flow may be without progress, and a peer without a session: docs/RELIABILITY.md.
const STALL: Duration = Duration::from_secs(30);

/// Runs it and prints the report.
pub(crate) fn run(args: &SoakArgs, json: bool) -> Result<()> {
    topology::check_permission()?;
    let command = args.weft.clone().unwrap_or_default();
    let implementation = Implementation::weft(&command, weft_config::TunThreads::Auto, Offload::On)?;
    let files = tempfile::tempdir()?;
    let out = args.out.as_deref().unwrap_or(files.path());
    std::fs::create_dir_all(out)?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(args, Machine::this());
    let ended = run::run(args, &implementation, out, &interrupt, &mut report);
    if let Err(error) = &ended {
        report.fault(format!("it ended early: {error:#}"));
    }
    report.judge();
    output::print(&report, json, Report::text)?;
    if args.out.is_some() {
        std::fs::write(out.join("soak.json"), serde_json::to_string_pretty(&report)?)?;
        std::fs::write(out.join("soak.md"), report.text())?;
        plot::write(&out.join("soak.svg"), &report.plot().svg()?)?;
    }
    ended?;
    ensure!(report.faults().is_empty(), "{} faults: see the report", report.faults().len());
    Ok(())
}
