//! `weft status`: requests the state of the running interfaces, and prints it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_report::control_socket::{Client, ClientError};
use weft_report::finding::{self, Finding};
use weft_report::{ExpiredPeerReport, StatusReport, add_recent, diagnose, of_expired};

use crate::args::StatusArgs;
use crate::output;
use crate::running::{self, Running};

mod details;
mod glance;

pub(crate) use details::peer_lines;
pub(crate) use glance::{SHOWN_PEERS, first, left, more};

/// Prints the state of one interface, or of all running interfaces.
///
/// # Errors
/// When no interface runs; the error of an interface that does not answer.
pub fn run(args: &StatusArgs) -> Result<(), Error> {
    running::warn_of_leftovers(args.name.as_ref());
    let Running { answers: reports, forbidden, errors } = match &args.name {
        Some(name) => {
            let asked = ask_one(name, args.sample);
            let mut report = asked.map_err(|error| match error {
                ClientError::NotRunning { .. } => {
                    peer_elsewhere(name.as_str()).unwrap_or_else(|| not_running(name, error))
                }
                error => error.into(),
            })?;
            if let Some(wanted) = &args.peer {
                keep_alone(&mut report, wanted)?;
            }
            Running { answers: vec![report], forbidden: Vec::new(), errors: Vec::new() }
        }
        None => ask_all(args.sample)?,
    };
    if args.json {
        output::print_json(&Interfaces { version: output::JSON_VERSION, interfaces: &reports })?;
    } else {
        let texts: Vec<String> = reports.iter().map(|report| text(report, args)).collect();
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

/// Returns the error, with the name of a running interface that is almost this one.
fn not_running(name: &InterfaceName, error: ClientError) -> Error {
    let running = running::names();
    let near = weft_config::closest(name.as_str(), running.iter().map(InterfaceName::as_str));
    match near {
        Some(near) => Error::new(error.exit_code(), format!("{error}; did you mean {near}?")),
        None => error.into(),
    }
}

/// Says that the name is that of a peer, if an interface that runs has it.
fn peer_elsewhere(name: &str) -> Option<Error> {
    let running = running::ask_all(|mut client| client.status()).ok()?;
    let has_it = |report: &&StatusReport| {
        report.peers.iter().any(|peer| peer.settings.friendly_name.as_deref() == Some(name))
    };
    let interface = &running.answers.iter().find(has_it)?.interface;
    let reason = format!("{name} is a peer of {interface}: `weft status {interface} {name}`");
    Some(Error::new(Code::Failure, reason))
}

/// Leaves the peer that a user names, and the findings about it, in a report.
fn keep_alone(report: &mut StatusReport, wanted: &str) -> Result<(), Error> {
    let found = report.peer_or_expired(wanted).map_err(|error| Error::new(Code::Failure, error))?;
    match found.cloned().map_err(ExpiredPeerReport::clone) {
        Ok(peer) => {
            report.findings.retain(|finding| finding.about.as_deref() == Some(&peer.label()));
            report.expired_peers.retain(|other| other.public_key == peer.public_key);
            report.peers = vec![peer];
        }
        Err(ended) => {
            report.findings = of_expired(report, &ended).into_iter().collect();
            (report.peers, report.expired_peers) = (Vec::new(), vec![ended]);
        }
    }
    Ok(())
}

fn text(report: &StatusReport, args: &StatusArgs) -> String {
    let width = output::columns();
    match &report.peers[..] {
        peers if args.peer.is_some() => {
            let peers = peers.iter().map(|peer| details::one_peer(peer, report));
            peers.collect::<String>() + &finding::lines(&report.findings, width)
        }
        _ if args.verbose => details::render(report, width),
        _ => glance::render(report, width),
    }
}

#[derive(Serialize)]
struct Interfaces<'a> {
    version: u32,
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
    report.findings.extend(not_forwarded(&report));
    Ok(report)
}

/// The daemon may not see whether the machine forwards: its unit hides that.
fn not_forwarded(report: &StatusReport) -> Option<Finding> {
    // That machine forwards or not, and not the one on which this runs.
    let is_elsewhere = (weft_host::Process { id: report.pid, started: 0 }).is_elsewhere();
    if report.peers.is_empty() || is_elsewhere {
        return None;
    }
    let file = Path::new(report.file.as_ref()?);
    let text = weft_config::read_regular_text(file).ok()?;
    let name = report.interface.parse().ok()?;
    let config = weft_config::parse_to_edit(&text, file, name).ok()?.config;
    weft_host::misrouted::not_forwarded(&config).as_ref().map(crate::misrouted::finding)
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
