//! The sequence of the demo.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use weft_commands::hang_up::is_hung_up;
use weft_commands::output;
use weft_config::exit::{Code, Error};
use weft_lab::cpu;

use super::ends::{self, End};
use super::interrupt::Interrupt;
use super::load::{Load, TCP_FLOWS};
use super::report::{DaemonReport, Report};
use super::table;
use crate::cli::DemoArgs;

/// Runs two tunnel ends on this machine and sends traffic between them. Call it before any thread is started:
/// an unprivileged user gets the necessary rights from a user namespace.
///
/// Ctrl-C ends the demo early with a report of what was done, and exit code 1; a second Ctrl-C ends it at
/// once.
///
/// # Errors
/// [`Code::Permission`] where namespaces or TUN devices are not allowed, [`Code::Failure`] if anything was
/// lost, corrupted or reordered inside weft, or after Ctrl-C.
pub fn run(args: &DemoArgs) -> Result<(), Error> {
    let interrupt = Interrupt::block()?;
    let mut ends = ends::start(args.tun)?;
    let out = Output { json: args.json, is_terminal: io::stdout().is_terminal() };
    let process_before = cpu::process_time();
    let daemons_before = ends.each_ref().map(End::cpu_time);

    let start = Instant::now();
    let load = Load::start(&ends, start + Duration::from_secs(args.secs.into()))?;
    let interrupted = watch(&load, start, args.secs, &interrupt, &mut ends, &out)?;
    let elapsed = start.elapsed();
    load.stop();
    let results = load.finish();

    let mut daemons = Vec::new();
    let mut daemon_cpu = Duration::ZERO;
    for ((end, before), name) in ends.iter_mut().zip(daemons_before).zip(["a", "b"]) {
        let account = end.settled_account().map_err(failure)?;
        end.sample_cpu();
        let cpu = end.cpu_time().saturating_sub(before);
        daemon_cpu += cpu;
        let kernel_drops = end.kernel_drops()?;
        daemons.push(DaemonReport { name, cpu_seconds: cpu.as_secs_f64(), account, kernel_drops });
    }
    let traffic_cpu = (cpu::process_time() - process_before).saturating_sub(daemon_cpu);
    for end in ends {
        end.stop().map_err(failure)?;
    }

    let report = Report::new(elapsed, interrupted, results, daemons, traffic_cpu);
    out.report(&report)?;
    match report.problems.first() {
        Some(problem) => Err(Error::new(Code::Failure, problem.clone())),
        None if interrupted => Err(Error::new(Code::Failure, "interrupted")),
        None => Ok(()),
    }
}

fn failure(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Code::Failure, error)
}

/// Prints the rates of every second until the time is up. Returns whether a signal came first.
fn watch(
    load: &Load,
    start: Instant,
    seconds: u32,
    interrupt: &Interrupt,
    ends: &mut [End; 2],
    out: &Output,
) -> Result<bool, Error> {
    out.progress(&table::progress_heading())?;
    let mut before = load.received_bytes();
    let mut last = start;
    for second in 1..=u64::from(seconds) {
        if interrupt.wait_until(start + Duration::from_secs(second)) {
            return Ok(true);
        }
        let now = Instant::now();
        let bytes = load.received_bytes();
        let elapsed = (now - last).as_secs_f64();
        let rates: [f64; TCP_FLOWS.len()] =
            std::array::from_fn(|flow| (bytes[flow] - before[flow]) as f64 * 8.0 / 1e9 / elapsed);
        out.progress(&table::progress(second, rates, load.numbered_progress()))?;
        (before, last) = (bytes, now);
        ends.iter_mut().for_each(End::sample_cpu);
    }
    Ok(false)
}

/// Where the demo prints: progress and report go to standard output; with `--json` progress goes to standard
/// error.
struct Output {
    json: bool,
    /// Whether standard output was a terminal at the start.
    is_terminal: bool,
}

impl Output {
    fn progress(&self, text: &str) -> Result<(), Error> {
        if self.json {
            output::progress(text);
            // The report would go to a terminal that is gone.
            if self.is_terminal && is_hung_up(io::stdout()) {
                return Err(Error::new(Code::Failure, "the terminal is gone"));
            }
            return Ok(());
        }
        output::print_styled(text)
    }

    fn report(&self, report: &Report) -> Result<(), Error> {
        if self.json { output::print_json(report) } else { output::print_styled(&table::report(report)) }
    }
}
