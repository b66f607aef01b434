//! One measurement: a gateway at rest, and then under an attack.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use weft_lab::client::{Client, HEADERS, STAMP, Stamp, Workbench};
use weft_lab::flood::{Running, Sent};
use weft_report::StatusReport;

use super::attack::{Attack, Kind};
use super::load::{MBIT_PER_SECOND, PacedStream};
use super::pinger::{self, LOST};
use super::site::Site;
use crate::implementation::Implementation;
use crate::interrupt::Interrupt;
use crate::report::{Figure, PINGS_LOST, Sample};
use crate::site::{GATEWAY, to_gateway};
use crate::status::Between;

/// Excluded start-up time: slow start, and credit that a flood uses up at once.
const WARM_UP: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(2);
/// Time for three retries of a stranger: a handshake is retried after 5 s and up to a third of a second
/// (whitepaper, section 6.4).
const LIMIT: Duration = Duration::from_secs(17);
const TICK: Duration = Duration::from_millis(1);

/// TCP payload beside the attack, and by that before it.
pub(super) const MBIT: Figure = Figure::new("mbit", "Mbit/s", 1);
pub(super) const RATIO: Figure = Figure::new("ratio", "by that at rest", 2);
/// Time of the stage "handshakes" of the packet thread, in per cent of all time.
pub(super) const HANDSHAKES: Figure = Figure::new("handshakes_percent", "handshakes, %", 1);
pub(super) const SENT: Figure = Figure::new("sent_per_second", "attack, datagrams/s", 0);
/// The most initiations that a stranger needed, and the strangers without a session.
pub(super) const TRIES: Figure = Figure::new("stranger_tries", "strangers: initiations", 0);
pub(super) const NOT_IN: Figure = Figure::new("strangers_not_in", "strangers not in", 0);

/// The gateway's counters at one moment, and what was sent.
struct Moment {
    at: Instant,
    bytes: u64,
    sent: Sent,
    cpu: Duration,
    status: Option<StatusReport>,
}

impl Moment {
    fn now(site: &Site, stream: &PacedStream, flood: Option<&Running>) -> Result<Self> {
        let (at, bytes) = (Instant::now(), stream.bytes());
        let sent = flood.map(Running::so_far).unwrap_or_default();
        Ok(Self { at, bytes, sent, cpu: site.gateway.usage()?.cpu, status: site.gateway.status() })
    }

    /// Returns the growth of a counter per second between two moments.
    fn rate(&self, then: &Self, count: impl Fn(&Self) -> f64) -> f64 {
        (count(self) - count(then)) / self.at.duration_since(then.at).as_secs_f64()
    }

    fn mbit(&self, then: &Self) -> f64 {
        self.rate(then, |moment| moment.bytes as f64 * 8e-6)
    }
}

pub(super) fn measure(
    attack: Attack,
    secs: u32,
    client: &Implementation,
    implementation: &Implementation,
    interrupt: &Interrupt,
) -> Result<Sample> {
    let site = Site::start(attack.is_v6, implementation, client, interrupt)?;
    let span = Duration::from_secs(secs.into());
    let warm_up = match attack.kind {
        // Each source sends its first message without a cookie.
        Kind::Proven => WARM_UP + Duration::from_secs(attack.count.into()) / attack.per_second,
        _ => WARM_UP,
    };
    let stream = PacedStream::start(&site.networks.client, &site.networks.inside, GATEWAY, MBIT_PER_SECOND)?;
    let pings = pinger::start(&site.networks.client, GATEWAY)?;
    interrupt.sleep(WARM_UP)?;
    let rest = Moment::now(&site, &stream, None)?;
    interrupt.sleep(REST)?;
    let rest = Moment::now(&site, &stream, None)?.mbit(&rest);

    // The flood lasts longer than everything measured beside it.
    let flood = site.networks.flood(attack, site.key, warm_up + span + LIMIT + WARM_UP)?;
    interrupt.sleep(warm_up)?;
    let before = Moment::now(&site, &stream, Some(&flood))?;
    let strangers = site.strangers()?;
    let strangers = std::thread::spawn(move || come_in(strangers));
    interrupt.sleep(span)?;
    let after = Moment::now(&site, &stream, Some(&flood))?;
    let tries = strangers.join().map_err(|_| anyhow!("the strangers' thread panicked"))??;
    site.check()?;
    drop((flood, stream));

    let lost = LOST.as_secs_f64() * 1000.0;
    let pings = pings.finish()??;
    let within = pings.iter().filter(|ping| ping.sent >= before.at && ping.sent < after.at);
    let took = within.map(|ping| ping.took.map_or(lost, |took| (took.as_secs_f64() * 1000.0).min(lost)));
    let millis: Vec<f64> = took.collect();
    let cpu = after.rate(&before, |moment| moment.cpu.as_secs_f64()) * 100.0;
    let mbit = after.mbit(&before);
    let mut sample = Sample::of_pings(&millis, lost)
        .with(MBIT, mbit)
        .with_all([("rest_mbit", "Mbit/s at rest", 1, rest)])
        .with(RATIO, mbit / rest)
        .with(PINGS_LOST, millis.iter().filter(|millis| **millis >= lost).count() as f64)
        .with_all([("cpu_percent", "CPU of the gateway, %", 0, cpu)]);
    if let Some((then, now)) = before.status.as_ref().zip(after.status.as_ref()) {
        let (weft, seconds) = (Between { then, now }, after.at.duration_since(before.at).as_secs_f64());
        let overflows = weft.grown(|weft| weft.udp.receive_overflows);
        sample = sample.with(HANDSHAKES, weft.stage_ns("handshakes") * 1e-9 / seconds * 100.0).with_all([
            ("turn_p999_ms", "turn p99.9, ms", 2, weft.turn_ns(0.999) * 1e-6),
            ("receive_overflows", "dropped: sockets full", 0, overflows),
        ]);
    }
    let proven = after.rate(&before, |moment| moment.sent.proven as f64);
    let most = tries.iter().flatten().max().map_or(f64::NAN, |most| *most as f64);
    Ok(sample
        .with(SENT, after.rate(&before, |moment| moment.sent.datagrams as f64))
        .with_all([("proven_per_second", "of these with a cookie", 0, proven)])
        .with(NOT_IN, tries.iter().filter(|tries| tries.is_none()).count() as f64)
        .with(TRIES, most))
}

/// Lets peers without a session ask for one, all at once. Returns the initiations that each needed, or `None`
/// for one without a session after [`LIMIT`].
fn come_in(mut strangers: Vec<Client>) -> std::io::Result<Vec<Option<u64>>> {
    let (mut bench, start) = (Workbench::default(), Instant::now());
    for stranger in &mut strangers {
        let flow = to_gateway(stranger, 4002, 4000);
        stranger.send(flow, HEADERS + STAMP, Stamp::default(), 1, start, &mut bench)?;
    }
    let mut tries: Vec<Option<u64>> = vec![None; strangers.len()];
    while tries.contains(&None) && start.elapsed() < LIMIT {
        let now = Instant::now();
        for (stranger, tries) in strangers.iter_mut().zip(&mut tries) {
            stranger.receive(now, &mut bench, |_, _| {})?;
            stranger.timers(now, &mut bench)?;
            if stranger.has_session() {
                *tries = tries.or_else(|| Some(stranger.initiations()));
            }
        }
        std::thread::sleep(TICK);
    }
    Ok(tries)
}
