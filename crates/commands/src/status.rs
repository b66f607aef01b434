//! `weft status`: requests the state of the running interfaces, and prints it.

use std::time::{Duration, Instant};

use serde::Serialize;
use weft_config::InterfaceName;
use weft_config::exit::Error;
use weft_report::control_socket::{Client, ClientError};
use weft_report::{StatusReport, add_recent, diagnose};

use crate::args::StatusArgs;
use crate::output;
use crate::running::{self, Running};

mod table;

/// Prints the state of one interface, or of all running interfaces.
///
/// # Errors
/// When no interface runs; the error of an interface that does not answer.
pub fn run(args: &StatusArgs) -> Result<(), Error> {
    running::warn_of_leftovers(args.name.as_ref());
    let Running { answers: reports, forbidden, errors } = match &args.name {
        Some(name) => {
            let report = ask_one(name, args.sample)?;
            Running { answers: vec![report], forbidden: Vec::new(), errors: Vec::new() }
        }
        None => ask_all(args.sample)?,
    };
    if args.json {
        output::print_json(&Interfaces { interfaces: &reports })?;
    } else {
        let texts: Vec<String> =
            reports.iter().map(|report| table::render(report, &report.findings)).collect();
        output::print_styled(&texts.join("\n"))?;
    }
    for error in forbidden {
        output::warning(&error);
    }
    let mut errors = errors.into_iter();
    let Some(last) = errors.next_back() else { return Ok(()) };
    for error in errors {
        output::error(&error);
    }
    Err(last.into())
}

#[derive(Serialize)]
struct Interfaces<'a> {
    interfaces: &'a [StatusReport],
}

fn ask_one(name: &InterfaceName, sample: Duration) -> Result<StatusReport, ClientError> {
    let mut client = Client::connect(name)?;
    let first = client.status()?;
    std::thread::sleep(sample);
    complete(&mut client, first, sample)
}

/// Requests a second report, unless `sample` is zero, and adds the rates and findings.
fn complete(client: &mut Client, first: StatusReport, sample: Duration) -> Result<StatusReport, ClientError> {
    let mut report = if sample.is_zero() {
        first
    } else {
        let mut second = client.status()?;
        add_recent(&mut second, &first);
        second
    };
    report.findings = diagnose(&report);
    Ok(report)
}

/// Returns the reports of all running interfaces.
fn ask_all(sample: Duration) -> Result<Running<StatusReport>, Error> {
    let begin = Instant::now();
    let asked = running::ask_all(|mut client| Ok((client.status()?, client)))?;
    // One pause for all interfaces.
    std::thread::sleep(sample.saturating_sub(begin.elapsed()));
    let mut running = Running { answers: Vec::new(), forbidden: asked.forbidden, errors: asked.errors };
    for (first, mut client) in asked.answers {
        match complete(&mut client, first, sample) {
            Ok(report) => running.answers.push(report),
            Err(error) => running.errors.push(error),
        }
    }
    Ok(running)
}
