//! The figures of one measurement.

use std::time::{Duration, Instant};

use weft_lab::flood::Sent;
use weft_report::StatusReport;

use super::pinger::{LOST, Ping};
use super::visitors::Visits;
use crate::report::{Figure, PINGS_LOST, Sample};
use crate::status::Between;

/// TCP payload before the attack and beside it.
const REST_MBIT: Figure = Figure::new("rest_mbit", "Mbit/s at rest", 1);
pub(super) const MBIT: Figure = Figure::new("mbit", "Mbit/s", 1);
pub(super) const RATIO: Figure = Figure::new("ratio", "by that at rest", 2);
/// CPU time of the gateway's process, in per cent of one core.
const CPU: Figure = Figure::new("cpu_percent", "CPU of the gateway, %", 0);
/// Time of the stage "handshakes" of the packet thread, in per cent of all time.
pub(super) const HANDSHAKES: Figure = Figure::new("handshakes_percent", "handshakes, %", 1);
pub(super) const TURN: Figure = Figure::new("turn_p999_ms", "turn p99.9, ms", 2);
const OVERFLOWS: Figure = Figure::new("receive_overflows", "dropped: sockets full", 0);
pub(super) const SENT: Figure = Figure::new("sent_per_second", "attack, datagrams/s", 0);
const PROVEN: Figure = Figure::new("proven_per_second", "of these with a cookie", 0);
/// The most initiations that a stranger needed, and the strangers without a session.
pub(super) const TRIES: Figure = Figure::new("stranger_tries", "strangers: initiations", 0);
pub(super) const NOT_IN: Figure = Figure::new("strangers_not_in", "strangers not in", 0);
/// The first packets to awaited peers: those that did not arrive, and the time of the slowest.
pub(super) const FIRST_LOST: Figure = Figure::new("first_packets_lost", "first packets lost", 0);
const FIRST_SLOWEST: Figure = Figure::new("first_packet_ms", "slowest first packet, ms", 0);

/// The gateway's counters at one moment.
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) sent: Sent,
    pub(super) cpu: Duration,
    pub(super) status: Option<StatusReport>,
}

/// Returns the figures of one gateway beside one attack: TCP before it and beside it, the pings until TCP was
/// no longer measured, and what the gateway and the visitors counted.
pub(super) fn sample(
    [rest_mbit, mbit]: [f64; 2],
    (pings, until): (&[Ping], Instant),
    before: &Moment,
    after: &Moment,
    visits: &Visits,
) -> Sample {
    let lost = LOST.as_secs_f64() * 1000.0;
    let within = pings.iter().filter(|ping| ping.sent >= before.at && ping.sent < until);
    let millis: Vec<f64> =
        within.map(|ping| ping.took.map_or(lost, |took| (took.as_secs_f64() * 1000.0).min(lost))).collect();
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let mut sample = Sample::of_pings(&millis, lost)
        .with(MBIT, mbit)
        .with(REST_MBIT, rest_mbit)
        .with(RATIO, mbit / rest_mbit)
        .with(PINGS_LOST, millis.iter().filter(|millis| **millis >= lost).count() as f64)
        .with(CPU, after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds * 100.0);
    if let Some((then, now)) = before.status.as_ref().zip(after.status.as_ref()) {
        sample = of_weft(sample, Between { then, now }, seconds);
    }
    sample = sample
        .with(SENT, per_second(after.sent.datagrams, before.sent.datagrams))
        .with(PROVEN, per_second(after.sent.proven, before.sent.proven))
        .with(NOT_IN, visits.strangers.iter().filter(|tries| tries.is_none()).count() as f64);
    if let Some(tries) = visits.strangers.iter().flatten().max() {
        sample = sample.with(TRIES, *tries as f64);
    }
    if !visits.first_packets.is_empty() {
        let took = visits.first_packets.iter().flatten();
        let lost = visits.first_packets.len() - took.clone().count();
        sample = sample.with(FIRST_LOST, lost as f64).with(FIRST_SLOWEST, took.copied().fold(0.0, f64::max));
    }
    sample
}

/// Adds the figures that only a weft reports of itself.
fn of_weft(sample: Sample, weft: Between<'_>, seconds: f64) -> Sample {
    sample
        .with(HANDSHAKES, weft.stage_ns("handshakes") * 1e-9 / seconds * 100.0)
        .with(TURN, weft.turn_ns(0.999) * 1e-6)
        .with(OVERFLOWS, weft.grown(|weft| weft.udp.receive_overflows))
}
