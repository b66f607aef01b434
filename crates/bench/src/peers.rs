//! `weft-bench peers`: a gateway with thousands of peers, many of which are active at once.
//!
//! ```text
//!   gateway                                              clients
//!   sink, echo, sender ── 10.0.0.1 ── daemon ── veth ── 250 addresses ── a tunnel and a socket each, few threads
//! ```
//!
//! The daemon is a real process; its peers are weft's own state machine, driven by epoll (`swarm.rs`), so
//! that a thousand peers need no thousand processes. Packets are numbered, and both ends are in this process:
//! a sender knows which packets have arrived and keeps a window, as TCP does, so that losses are caused by
//! the gateway.

pub(crate) mod client;
mod fairness;
mod gateway;
mod inside;
mod ledger;
mod measure;
pub(crate) mod packet;
pub(crate) mod priority;
mod report;
pub(crate) mod roster;
pub(crate) mod socket;
mod swarm;
mod turns;
mod work;

pub(crate) mod args;

use anyhow::{Result, ensure};

pub(crate) use args::PeersArgs;

use self::args::Work;
use self::measure::Stand;
use self::report::Report;
use self::roster::Roster;
use crate::cli::{Offload, WeftCommand};
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::{commands, tools, topology};

/// Measures and prints the report.
pub(crate) fn run(args: &PeersArgs) -> Result<()> {
    let total = args.active as usize + Stand::EXTRAS;
    let configured = args.configured as usize;
    ensure!(total <= configured, "{total} peers take part, and only {configured} are configured");
    topology::check_permission()?;
    let default = [WeftCommand::default()];
    let wefts = if args.wefts.is_empty() && args.others.is_empty() { &default[..] } else { &args.wefts };
    let mut implementations = Vec::new();
    for weft in wefts {
        let implementation = Implementation::weft(weft, args.tun_threads, Offload::On)?;
        implementations.push((weft.name.clone(), implementation));
    }
    let others = args.others.iter().map(|other| (other.name.clone(), Implementation::Other(other.clone())));
    implementations.extend(others);
    commands::check_names(implementations.iter().map(|(name, _)| name.as_str()))?;
    tools::check(&[], implementations.iter().map(|(_, implementation)| implementation))?;
    gateway::allow_sockets(total * implementations.len())?;
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(args, Machine::this());
    if args.work.contains(&Work::Fairness) {
        report.notes.extend(priority::refusal());
    }
    let measured = work::measure(args, &implementations, &interrupt, &mut report);
    if measured.is_ok() || !report.subjects.is_empty() {
        report.notes.extend(measured.as_ref().err().map(|error| format!("it ended early: {error:#}")));
        crate::report::print(&report, args.json, Report::text)?;
    }
    measured
}

/// Creates the roster of all peers, and one with a single peer to measure the memory without peers.
fn rosters(args: &PeersArgs) -> Result<(Roster, Roster)> {
    let active = args.active as usize + Stand::EXTRAS;
    Ok((Roster::new(args.configured as usize, active)?, Roster::new(1, 0)?))
}
