//! `weft-bench peers`: a gateway with thousands of peers, many of which are active at once.
//!
//! ```text
//!   gateway                                              clients
//! sink, echo, sender ── 10.0.0.1 ── daemon ── veth ── 250 addresses ── a tunnel and a socket each, few
//! threads
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
mod round_robin;
mod shape;
pub(crate) mod socket;
mod swarm;
mod work;

pub(crate) mod args;

use anyhow::{Result, ensure};

pub(crate) use args::PeersArgs;

use self::args::Work;
use self::measure::Stand;
use self::report::Report;
use self::roster::Roster;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::{implementation, output, tools, topology};

/// Measures and prints the report.
pub(crate) fn run(args: &PeersArgs, json: bool) -> Result<()> {
    let total = args.active as usize + Stand::EXTRAS;
    let configured = args.configured as usize;
    ensure!(total <= configured, "{total} peers take part, and only {configured} are configured");
    topology::check_permission()?;
    // Another implementation alone is measured alone.
    let wefts = if args.others.is_empty() { args.wefts.commands() } else { args.wefts.wefts.clone() };
    let implementations = implementation::named(&wefts, args.tun_threads, &args.others)?;
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
        output::print(&report, json, Report::text)?;
    }
    measured
}

/// Creates the roster of all peers, and one with a single peer to measure the memory without peers.
fn rosters(args: &PeersArgs) -> Result<(Roster, Roster)> {
    let active = args.active as usize + Stand::EXTRAS;
    Ok((Roster::new(args.configured as usize, active)?, Roster::new(1, 0)?))
}
