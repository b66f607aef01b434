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
//! the gateway. All gateways come up, then each round measures them in turn.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};

use self::gateway::Roster;
use self::measure::{Direction, JAIN, LOST, Load, SLOWEST, Stand};
use self::task::Shape;
use crate::args::{SideArgs, turns};
use crate::implementation::{self, Side};
use crate::interrupt::Interrupt;
use crate::machine::memory_mib;
use crate::report::{CPU, Figure, GBIT, PING_P99, PINGS_LOST, Report, Sample, Wanted};
use crate::site;

pub(crate) mod gateway;
mod inside;
mod measure;
pub(crate) mod priority;
mod swarm;
mod task;

/// Peers that share the gateway with a flooding one.
const EQUALS: usize = 16;
const DIRECTIONS: [Direction; 2] = [Direction::Upload, Direction::Download];
/// Ports of the gateway: two sinks, of which the second one is for the flooding peer, and an echo.
const SINK: u16 = 4000;
const HEAVY_SINK: u16 = 4003;
const ECHO: u16 = 4001;
/// Port of the clients.
const CLIENT: u16 = 4002;

/// The Gbit/s that the gateway carries for the peer beside the others.
const OTHER: Figure = Figure::new("other_gbit_per_second", "the other", 3);
/// The speed divided by the speed alone, or by the fair share if that is less: 1 is full service.
const KEPT: Figure = Figure::new("kept", "kept", 2);

#[derive(Clone, Debug, Args)]
pub(crate) struct PeersArgs {
    #[command(flatten)]
    pub(crate) sides: SideArgs,
    /// How many peers the gateway is configured with.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    pub(crate) configured: u32,
    /// How many of them are there and send at once; one more floods, and eight more ping.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) active: u32,
    /// What to measure, with commas between them. Handshakes are always made.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "throughput,fairness")]
    pub(crate) work: Vec<Work>,
    /// Packets that a peer sends one behind the other before the next one does, as one segmented send.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=44))]
    pub(crate) burst: u32,
    /// Packets that may be on their way, all peers together.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Throughput with one peer and with all active ones.
    Throughput,
    /// Latency and throughput of a peer beside one that floods.
    Fairness,
}

pub(crate) fn run(args: &PeersArgs, json: bool) -> Result<()> {
    let total = args.active as usize + Stand::EXTRAS;
    let configured = args.configured as usize;
    ensure!(total <= configured, "{total} peers take part, and only {configured} are configured");
    site::check_permission()?;
    let sides = args.sides.sides()?;
    implementation::check(&sides)?;
    gateway::allow_sockets(total * sides.len())?;
    let interrupt = Interrupt::watch()?;
    let times = args.sides.times;
    let settings: [(_, &dyn std::fmt::Display); 6] = [
        ("rounds", &times.rounds),
        ("seconds", &times.secs),
        ("configured", &args.configured),
        ("active", &args.active),
        ("packets of 1400 bytes in a turn", &args.burst),
        ("on their way at most", &args.window),
    ];
    let mut report = Report::begin(&settings)?;
    if args.work.contains(&Work::Fairness) {
        priority::refusal().into_iter().for_each(|note| report.note(note));
    }
    let ended = measure_all(args, &sides, &mut report, &interrupt);
    for side in &sides {
        judge(&mut report, args, &side.name);
    }
    report.finish(ended, json)
}

/// Compares all peers with one, and peers beside a load with peers alone.
fn judge(report: &mut Report, args: &PeersArgs, name: &str) {
    for direction in DIRECTIONS {
        let [one, all] = [format!("{direction}, one peer"), format!("{direction}, all peers")];
        if args.work.contains(&Work::Throughput) {
            report.compare([&all, name], [&one, name], GBIT, Some(Wanted::RatioAtLeast(0.7)));
            report.compare([&all, name], [&one, name], CPU, None);
        }
        if args.work.contains(&Work::Fairness) {
            let beside = load_name(Some((direction, Load::Flood)));
            let ping = format!("ping {beside}");
            report.compare([&ping, name], ["ping alone", name], PING_P99, Some(Wanted::RatioAtMost(2.0)));
            report.require([&ping, name], PINGS_LOST, Wanted::AtMost(0.0));
            for equals in equals(args) {
                let case = format!("{} {beside}", peers_of(equals));
                report.require([&case, name], KEPT, Wanted::MedianAtLeast(0.9));
            }
        }
    }
}

/// The numbers of equal peers.
fn equals(args: &PeersArgs) -> [usize; 2] {
    [1, EQUALS.min(args.active as usize)]
}

fn peers_of(count: usize) -> String {
    if count == 1 { "one peer".to_owned() } else { format!("{count} peers") }
}

fn load_name(load: Option<(Direction, Load)>) -> String {
    load.map_or("alone".to_owned(), |(direction, load)| {
        format!("beside a {load:?} {direction}").to_lowercase()
    })
}

fn measure_all(args: &PeersArgs, sides: &[Side], report: &mut Report, interrupt: &Interrupt) -> Result<()> {
    let active = args.active as usize + Stand::EXTRAS;
    let roster = Roster::new(args.configured as usize, active)?;
    let mut stands = Vec::new();
    for side in sides {
        let mut stand = Stand::new(&side.implementation, &roster, interrupt)
            .with_context(|| format!("{}: the gateway does not come up", side.name))?;
        let (half, all) = stand.shake_hands(interrupt)?;
        let sample = Sample::default().with_all([
            ("configured_seconds", "configured in, s", 2, stand.gateway.configured_in.as_secs_f64()),
            ("complete", "handshakes", 0, args.active.into()),
            ("seconds", "seconds", 2, all.as_secs_f64()),
            ("half_seconds", "half in, s", 2, half.as_secs_f64()),
            ("rss_mib", "RSS MiB", 1, memory_mib(stand.gateway.daemon.id(), "VmRSS")?),
        ]);
        report.attempt("handshakes at once", "", &side.name, Ok(sample))?;
        stands.push(stand);
    }
    for number in 0..args.sides.times.rounds as usize {
        for place in turns(stands.len(), number) {
            let name = &sides[place].name;
            let context = || format!("{name}, round {}", number + 1);
            round(args, name, &mut stands[place], report, interrupt).with_context(context)?;
        }
    }
    Ok(())
}

/// Measures one round with one gateway.
fn round(
    args: &PeersArgs,
    name: &str,
    stand: &mut Stand,
    report: &mut Report,
    interrupt: &Interrupt,
) -> Result<()> {
    let span = Duration::from_secs(args.sides.times.secs.into());
    let shape = Shape { burst: args.burst.into(), window: args.window.into() };
    let wait = || interrupt.sleep(span);
    stand.shake_hands(interrupt)?;
    if args.work.contains(&Work::Throughput) {
        for direction in DIRECTIONS {
            for (case, count) in [("one peer", 1), ("all peers", args.active as usize)] {
                let sample = stand.throughput(direction, count, shape, None, wait).map(|(sample, _)| sample);
                report.attempt("throughput", format!("{direction}, {case}"), name, sample)?;
            }
        }
    }
    if !args.work.contains(&Work::Fairness) {
        return Ok(());
    }
    let loads = DIRECTIONS.into_iter().flat_map(|to| [Load::Bulk, Load::Flood].map(|load| Some((to, load))));
    for load in std::iter::once(None).chain(loads) {
        let sample = stand.pings(load, shape, span, interrupt);
        report.attempt("pings of eight peers", format!("ping {}", load_name(load)), name, sample)?;
    }
    for equals in equals(args) {
        for direction in DIRECTIONS {
            let mut alone = f64::NAN;
            for load in [None, Some(Load::Bulk), Some(Load::Flood)] {
                let measured = stand.throughput(direction, equals, shape, load, wait);
                let sample = measured.map(|(sample, other)| {
                    let speed = sample.get(GBIT).unwrap_or_default();
                    if load.is_none() {
                        alone = speed;
                    }
                    share(&sample, equals, speed, other, alone)
                });
                let (peers, beside) = (peers_of(equals), load_name(load.map(|load| (direction, load))));
                let case = match load {
                    None => format!("{peers}, {direction} {beside}"),
                    Some(_) => format!("{peers} {beside}"),
                };
                report.attempt("shares", case, name, sample)?;
            }
        }
    }
    Ok(())
}

/// Returns how the speed of equal peers, together and alone, stands beside that of the other.
fn share(sample: &Sample, equals: usize, speed: f64, other: Option<f64>, alone: f64) -> Sample {
    let sample = sample.only(&[GBIT, JAIN, SLOWEST, LOST]);
    let Some(other) = other else { return sample };
    let fair = (speed + other) * equals as f64 / (equals + 1) as f64;
    sample.with(OTHER, other).with(KEPT, speed / fair.min(alone))
}
