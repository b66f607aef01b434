//! `weft-bench floods`: the service that a gateway's peers get while a stranger floods it.
//!
//! ```text
//!   client  eth0 ─── to-client   gateway   to-attacker ─── eth0  attacker
//!     TCP at a pace, pings,      a daemon with            frames from any source
//!     strangers with right keys  all peers
//! ```
//!
//! Every measurement starts its daemons, so that the aftermath of a flood, above all used-up credit, does not
//! affect the next one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Result;
use clap::Args;

use self::attack::{Attack, Kind, defaults};
use self::measure::{HANDSHAKES, MBIT, NOT_IN, RATIO, SENT, TRIES};
use crate::args::{SideArgs, turns};
use crate::implementation::{self, Implementation, Kind as SideKind, Side};
use crate::interrupt::Interrupt;
use crate::peers::priority;
use crate::report::{PING_P99, Report, Wanted};
use crate::site::check_permission;
use crate::worker::Worker;

pub(crate) mod attack;
pub(crate) mod load;
mod measure;
pub(crate) mod pinger;
pub(crate) mod site;

/// Target: TCP keeps at least this share of its speed at rest beside an attack.
const KEPT: f64 = 0.95;
/// Ratio from which two speeds count as equal: paced TCP differs by less from run to run.
const AS_MUCH: f64 = 0.99;
/// Target: beside an aimed attack TCP keeps at least this share of its speed beside one that is not aimed.
const ALIKE: f64 = 0.8;
/// A flood below this share of its requested rate is noted.
const FULL_RATE: f64 = 0.9;

#[derive(Clone, Debug, Args)]
pub(crate) struct FloodsArgs {
    #[command(flatten)]
    pub(crate) sides: SideArgs,
    /// What to flood with; several, with commas. See the list below. A flood lasts until all strangers are
    /// in, or 17 s, of which TCP and pings are measured for `--secs`.
    #[arg(long = "attack", value_name = "NAME", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// Threads of a busy loop beside everything.
    #[arg(long, value_name = "N", default_value_t = 0, num_args = 0..=1, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) busy: u32,
}

pub(crate) fn help() -> String {
    format!(
        "{}\n\nExamples:\n  weft-bench floods\n  weft-bench floods --alone --weft old=/tmp/weft --weft new=target/release/weft \\\n    \
         --attack proven-1@10000,mac1-65536@40000 --rounds 3",
        attack::help()
    )
}

pub(crate) fn run(args: &FloodsArgs, json: bool) -> Result<()> {
    check_permission()?;
    let sides = args.sides.sides()?;
    implementation::check(&sides)?;
    // All gateways have the same client: a slow client would make its gateway look slow.
    let client = match implementation::weft_beside_this()? {
        path if path.is_file() => Implementation::Weft { path, arguments: Vec::new() },
        _ => sides[0].implementation.clone(),
    };
    let interrupt = Interrupt::watch()?;
    let attacks = if args.attacks.is_empty() { defaults() } else { args.attacks.clone() };
    let times = args.sides.times;
    let mut report = Report::begin(&[
        ("TCP, Mbit/s", &load::MBIT_PER_SECOND),
        ("rounds", &times.rounds),
        ("seconds beside each attack", &times.secs),
        ("busy loops", &args.busy),
    ])?;
    priority::refusal().into_iter().for_each(|note| report.note(note));
    let spin = |stop: &AtomicBool| {
        while !stop.load(Relaxed) {
            std::hint::spin_loop();
        }
    };
    let _busy = (0..args.busy).map(|_| Worker::start("busy", spin)).collect::<Result<Vec<_>, _>>()?;
    let mut rounds = || -> Result<()> {
        for round in 0..times.rounds as usize {
            for attack in &attacks {
                for side in turns(sides.len(), round) {
                    let Side { name, implementation } = &sides[side];
                    let figures = measure::measure(*attack, times.secs, &client, implementation, &interrupt);
                    let sent = figures.as_ref().ok().and_then(|sample| sample.get(SENT));
                    let wanted = f64::from(attack.per_second);
                    if let Some(sent) = sent.filter(|sent| *sent < FULL_RATE * wanted) {
                        report
                            .note(format!("{attack}, {name}: {sent:.0} a second were sent, not {wanted:.0}"));
                    }
                    report.attempt(&attack.to_string(), attack, name, figures)?;
                }
            }
        }
        Ok(())
    };
    let ended = rounds();
    let of = |kind| sides.iter().filter(move |side| side.kind() == kind).map(|side| &side.name);
    for attack in &attacks {
        for name in of(SideKind::Weft) {
            judge(&mut report, &attacks, *attack, name);
            for other in of(SideKind::Other).filter(|_| !attack.kind.is_aimed()) {
                let attack = attack.to_string();
                report.compare([&attack, name], [&attack, other], MBIT, Some(Wanted::RatioAtLeast(AS_MUCH)));
            }
        }
    }
    report.finish(ended, json)
}

/// Judges what is wanted of a weft beside an attack.
fn judge(report: &mut Report, attacks: &[Attack], attack: Attack, name: &str) {
    let label = attack.to_string();
    let of = [label.as_str(), name];
    // Data for unknown receivers at the same rate and of the same family, which is not aimed.
    let plain = attacks.iter().find(|other| {
        other.kind == Kind::Data && (other.per_second, other.is_v6) == (attack.per_second, attack.is_v6)
    });
    if attack.kind.is_aimed() {
        if let Some(plain) = plain {
            report.compare(of, [&plain.to_string(), name], MBIT, Some(Wanted::RatioAtLeast(ALIKE)));
        }
    } else {
        report.require(of, RATIO, Wanted::MedianAtLeast(KEPT));
        report.require(of, PING_P99, Wanted::MedianAtMost(5.0));
        report.require_if_measured(of, HANDSHAKES, Wanted::MedianAtMost(10.0));
    }
    report.require(of, NOT_IN, Wanted::AtMost(0.0));
    // The first initiation and two retries.
    report.require_if_measured(of, TRIES, Wanted::AtMost(3.0));
}
