//! `weft status`: requests the state of the running interfaces, and prints it.

use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;
use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_ipc::MAY_CONNECT;
use weft_report::control_socket::{self as socket, Client, ClientError};
use weft_report::{StatusReport, add_recent, diagnose};

use crate::args::StatusArgs;
use crate::output;

mod table;

/// Prints the state of one interface, or of all running interfaces.
///
/// # Errors
/// [`Code::Failure`] when no interface runs; the error of an interface that does not answer.
pub fn run(args: &StatusArgs) -> Result<(), Error> {
    let (reports, errors) = match &args.name {
        Some(name) => (vec![ask_one(name, args.sample)?], Vec::new()),
        None => ask_all(args.sample)?,
    };
    if args.json {
        output::print_json(&Interfaces { interfaces: &reports })?;
    } else {
        let texts: Vec<String> =
            reports.iter().map(|report| table::render(report, &report.findings)).collect();
        output::print_styled(&texts.join("\n"))?;
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

/// Returns the reports of all running interfaces, and the errors of those that did not answer.
fn ask_all(sample: Duration) -> Result<(Vec<StatusReport>, Vec<ClientError>), Error> {
    let names = socket::running().map_err(|error| cannot_look(&error))?;
    let mut errors = Vec::new();
    let mut asked = Vec::new();
    let begin = Instant::now();
    for name in &names {
        match Client::connect(name).and_then(|mut client| client.status().map(|first| (client, first))) {
            Ok(answer) => asked.push(answer),
            // The socket of a dead daemon.
            Err(ClientError::NotRunning { .. }) => {}
            Err(error) => errors.push(error),
        }
    }
    if asked.is_empty() && errors.is_empty() {
        let place = socket::place();
        return Err(Error::new(
            Code::Failure,
            format!("no interface is running under weft (no daemon answers in {})", place.display()),
        ));
    }
    // One pause for all interfaces.
    std::thread::sleep(sample.saturating_sub(begin.elapsed()));
    let mut reports = Vec::new();
    for (mut client, first) in asked {
        match complete(&mut client, first, sample) {
            Ok(report) => reports.push(report),
            Err(error) => errors.push(error),
        }
    }
    Ok((reports, errors))
}

/// Builds the error if the control sockets cannot be listed.
pub fn cannot_look(error: &io::Error) -> Error {
    let permission = error.kind() == io::ErrorKind::PermissionDenied;
    let advice = if permission { format!("; run as {MAY_CONNECT}") } else { String::new() };
    Error::new(
        if permission { Code::Permission } else { Code::Failure },
        format!("{}: cannot look for running interfaces: {error}{advice}", socket::place().display()),
    )
}
