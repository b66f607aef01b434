//! The overall sequence: all gateways come up, then each round measures them in turn.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::args::{PeersArgs, Work};
use super::fairness::{PingFigures, Share};
use super::gateway::Gateway;
use super::measure::{Direction, Load, Stand};
use super::report::{Dump, Handshakes, Idle, Report, Start, mib};
use super::rosters;
use super::shape::Shape;
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::usage::Usage;

/// Shortest idle measurement: WireGuard's timers are seconds apart.
const REST: Duration = Duration::from_secs(5);
/// Wait before an idle measurement: after traffic WireGuard may still send a keepalive within 10 s
/// (whitepaper, section 6.5), and the other end may start a handshake 15 s after its last answer.
const KEEPALIVE: Duration = Duration::from_secs(17);
/// Peers that share the gateway with a flooding one.
const EQUALS: usize = 16;
/// Number of UAPI dumps.
const DUMPS: usize = 5;

/// Measures everything, and adds the results to the report.
pub(super) fn measure(
    args: &PeersArgs,
    implementations: &[(String, Implementation)],
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<()> {
    let (roster, without_peers) = rosters(args)?;
    let mut stands = Vec::new();
    for (name, implementation) in implementations {
        let context = || format!("{name}: the gateway does not come up");
        let empty =
            Gateway::start(implementation, &without_peers, interrupt).with_context(context)?.memory()?;
        let mut stand = Stand::new(implementation, &roster, interrupt).with_context(context)?;
        let (rss, _) = stand.gateway.memory()?;
        let start = Start {
            seconds: stand.gateway.configured_in.as_secs_f64(),
            rss_bytes: rss,
            bytes_per_idle_peer: rss.saturating_sub(empty.0) as f64 / f64::from(args.configured - 1),
        };
        say(name, &format!("{} peers in {:.2} s, {:.1} MiB", args.configured, start.seconds, mib(rss)));
        let place = report.subject(name, start);
        if args.work.contains(&Work::Idle) {
            report.subjects[place].idle_configured = Some(idle(&mut stand, REST, interrupt)?);
        }
        let before = stand.gateway.usage()?.cpu;
        let (half, all) = stand.shake_hands(interrupt).with_context(|| format!("{name}: handshakes"))?;
        let cpu = stand.gateway.usage()?.cpu.saturating_sub(before);
        let handshakes = Handshakes {
            complete: args.active,
            half_seconds: half.as_secs_f64(),
            all_seconds: all.as_secs_f64(),
            per_second: f64::from(args.active) / all.as_secs_f64(),
            cpu_millis_each: cpu.as_secs_f64() * 1000.0 / f64::from(args.active),
            rss_bytes: stand.gateway.memory()?.0,
        };
        say(name, &format!("{} handshakes in {:.2} s", args.active, handshakes.all_seconds));
        report.subjects[place].handshakes = Some(handshakes);
        if args.work.contains(&Work::Idle) {
            stand.rest(|_| interrupt.sleep(KEEPALIVE))?;
            report.subjects[place].idle_sessions = Some(idle(&mut stand, REST, interrupt)?);
        }
        stands.push((place, stand));
    }
    for round in 0..args.rounds as usize {
        // The gateway that begins changes from round to round.
        let first = round % stands.len();
        for place in (first..stands.len()).chain(0..first) {
            let (subject, stand) = &mut stands[place];
            let name = report.subjects[*subject].name.clone();
            let context = || format!("{name}, round {}", round + 1);
            turn(args, *subject, stand, interrupt, report).with_context(context)?;
        }
    }
    for (subject, stand) in &mut stands {
        if args.work.contains(&Work::Dump) {
            stand.renew_sessions(interrupt)?;
            report.subjects[*subject].dump = Some(dump(args, stand)?);
        }
        let (_, peak) = stand.gateway.memory()?;
        report.subjects[*subject].peak_rss_bytes = peak;
    }
    Ok(())
}

/// Measures one round with one gateway.
fn turn(
    args: &PeersArgs,
    subject: usize,
    stand: &mut Stand,
    interrupt: &Interrupt,
    report: &mut Report,
) -> Result<()> {
    let span = Duration::from_secs(args.secs.into());
    let shape = Shape::full(args.burst.into(), args.window.into());
    let name = report.subjects[subject].name.clone();
    stand.renew_sessions(interrupt)?;
    if args.work.contains(&Work::Throughput) {
        for direction in [Direction::Upload, Direction::Download] {
            let mut measure = |count: u32| -> Result<_> {
                let (figures, _, ()) =
                    stand.throughput(direction, count as usize, shape, None, |_, _| interrupt.sleep(span))?;
                Ok(figures)
            };
            let (one, many) = (measure(1)?, measure(args.active)?);
            let (a, b) = (one.gbit_per_second, many.gbit_per_second);
            say(
                &name,
                &format!("{direction:?}: {a:.3} Gbit/s with one peer, {b:.3} with all ({:.2})", b / a),
            );
            report.subjects[subject].throughput.push(direction, one, many);
        }
    }
    if args.work.contains(&Work::Fairness) {
        let loads = [Direction::Upload, Direction::Download]
            .into_iter()
            .flat_map(|direction| [Load::Bulk, Load::Flood].map(|load| Some((direction, load))));
        for load in std::iter::once(None).chain(loads) {
            let pings = stand.pings(load, shape, span, interrupt)?;
            let figures = PingFigures::new(load, &pings);
            say(&name, &figures.line());
            report.subjects[subject].fairness.pings.push(figures);
        }
        let sides = [1, EQUALS.min(args.active as usize)]
            .into_iter()
            .flat_map(|equals| [Direction::Upload, Direction::Download].map(|direction| (equals, direction)));
        for (equals, direction) in sides {
            for beside in [None, Some(Load::Bulk), Some(Load::Flood)] {
                let (figures, flooder, ()) =
                    stand.throughput(direction, equals, shape, beside, |_, _| interrupt.sleep(span))?;
                let share = Share::new(direction, beside, equals, &figures, flooder);
                say(&name, &share.line());
                report.subjects[subject].fairness.shares.push(share);
            }
        }
    }
    Ok(())
}

/// Measures the daemon's CPU time and wake-ups without traffic.
fn idle(stand: &mut Stand, span: Duration, interrupt: &Interrupt) -> Result<Idle> {
    stand.rest(|gateway| {
        let (start, before): (_, Usage) = (Instant::now(), gateway.usage()?);
        interrupt.sleep(span)?;
        let (spent, seconds) = (gateway.usage()?.since(before), start.elapsed().as_secs_f64());
        gateway.check()?;
        Ok(Idle {
            cpu_percent: spent.cpu.as_secs_f64() / seconds * 100.0,
            wake_ups_per_second: spent.voluntary_switches as f64 / seconds,
        })
    })
}

/// Dumps all peers over UAPI several times, while all active peers send.
fn dump(args: &PeersArgs, stand: &mut Stand) -> Result<Dump> {
    let shape = Shape::full(args.burst.into(), args.window.into());
    let count = args.active as usize;
    let ask = |gateway: &mut Gateway, ledger: &super::ledger::Ledger| {
        let mut asked = Vec::new();
        for _ in 0..DUMPS {
            let (start, before) = (Instant::now(), ledger.arrived_so_far());
            let peers = gateway.dump()?;
            let packets = ledger.arrived_so_far() - before;
            asked.push((start.elapsed().as_secs_f64(), peers, packets));
        }
        Ok(asked)
    };
    let (figures, _, asked) = stand.throughput(Direction::Upload, count, shape, None, ask)?;
    Ok(Dump::new(&asked, &figures))
}

fn say(name: &str, text: &str) {
    eprintln!("{name:<14} {text}");
}
