//! `weft-bench floods`: the service that a gateway's peers get while a stranger, or one of them, floods it.
//!
//! ```text
//!   client  eth0 ─── to-client   gateway   to-attacker ─── eth0  attacker
//!     TCP at a pace, pings,      a daemon with            frames from any source, or
//!     strangers with right keys  all peers                a malicious peer
//! ```
//!
//! Every measurement starts its daemons, so that the aftermath of a flood, above all used-up credit, does not
//! affect the next one.

mod args;
mod attack;
mod attacker;
mod figures;
pub(crate) mod load;
mod malicious_peer;
mod measure;
pub(crate) mod pinger;
mod report;
mod site;
mod visitors;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Result;

pub(crate) use args::FloodsArgs;

use self::measure::Plan;
use self::report::Report;
use crate::implementation::{Implementation, Kind};
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine::{self, Machine};
use crate::peers::priority;
use crate::{implementation, output, tools, topology};

/// How long the machine's load is observed before the first measurement.
const WATCH: std::time::Duration = std::time::Duration::from_secs(1);

/// Returns the attacks and examples for the command's help.
pub(crate) fn help() -> String {
    format!(
        "{}\n\nExamples:\n  weft-bench floods\n  weft-bench floods --alone --weft old=/tmp/weft --weft new=target/release/weft \\\n    \
         --attack proven-1@10000,mac1-65536@40000 --rounds 3",
        attack::help()
    )
}

/// Measures and prints the report.
pub(crate) fn run(args: &FloodsArgs, json: bool) -> Result<()> {
    topology::check_permission()?;
    let others = if args.alone { &[][..] } else { &args.others };
    let sides = implementation::named(&args.wefts.commands(), args.tun_threads, others)?;
    tools::check(&[], sides.iter().map(|(_, implementation)| implementation))?;
    // All gateways have the same client: a slow client would make its gateway look slow.
    let client = match implementation::weft_beside_this()? {
        path if path.is_file() => Implementation::Weft { path, arguments: Vec::new() },
        _ => sides[0].1.clone(),
    };
    let interrupt = Interrupt::watch()?;
    let mut report = Report::new(args, Machine::this(), machine::busy_cores(WATCH)?);
    report.notes.extend(priority::refusal());
    let _busy = Busy::start(args.busy);
    let measured = rounds(args, &sides, &client, &interrupt, &mut report);
    if let Err(error) = &measured {
        report.notes.push(format!("it ended early: {error:#}"));
    }
    output::print(&report, json, Report::text)?;
    measured?;
    output::check(report.failed)
}

/// Measures every attack with every side in each round. The side that begins changes from round to round.
fn rounds(
    args: &FloodsArgs,
    sides: &[(String, Implementation)],
    client: &Implementation,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<()> {
    for (name, implementation) in sides {
        report.side(name, implementation.kind() == Kind::Weft);
    }
    for round in 0..args.rounds as usize {
        for (place, attack) in args.attacks().into_iter().enumerate() {
            for turn in 0..sides.len() {
                let side = (round + turn) % sides.len();
                let (name, implementation) = &sides[side];
                let plan = Plan { attack, secs: args.secs, client, implementation };
                match measure::measure(&plan, interrupt) {
                    Ok(figures) => {
                        eprintln!("{:<22} {name:<14} {}", attack.to_string(), figures.line());
                        report.add(place, side, figures);
                    }
                    Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
                    Err(error) => report.fail(format!("{attack}, {name}: {error:#}")),
                }
            }
        }
    }
    Ok(())
}

/// Busy loops, each on a thread; dropping this ends them.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start(count: u32) -> Self {
        let stop = Arc::<AtomicBool>::default();
        for _ in 0..count {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
