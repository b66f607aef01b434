//! The figures of one measurement.

use std::time::{Duration, Instant};

use weft_lab::flood::Sent;
use weft_report::{HistogramReport, StatusReport};
use weft_tunnel::DropReason;

use super::pinger::{LOST, Ping};
use super::visitors::Visits;
use crate::report::{Figure, PING_P50, PING_P99, PINGS_LOST, Sample};
use crate::stats::percentile;

/// TCP payload before the attack and beside it.
const REST_MBIT: Figure = Figure::new("rest_mbit", "Mbit/s at rest", 1);
pub(super) const MBIT: Figure = Figure::new("mbit", "Mbit/s", 1);
pub(super) const RATIO: Figure = Figure::new("ratio", "by that at rest", 2);
const REST_P99: Figure = Figure::new("rest_p99_ms", "ping p99 at rest, ms", 2);
/// CPU time of the gateway's process, in per cent of one core.
const CPU: Figure = Figure::new("cpu_percent", "CPU of the gateway, %", 0);
/// Time of the stage "handshakes" of the packet thread, in per cent of all time.
pub(super) const HANDSHAKES: Figure = Figure::new("handshakes_percent", "handshakes, %", 1);
pub(super) const TURN: Figure = Figure::new("turn_p999_ms", "turn p99.9, ms", 2);
const STAGING_FULL: Figure = Figure::new("staging_full", "dropped: staging full", 0);
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

/// Returns the figures of one gateway beside one attack.
pub(super) fn sample(
    [rest_mbit, mbit]: [f64; 2],
    pings: &[Ping],
    spans: [(Instant, Instant); 2],
    before: &Moment,
    after: &Moment,
    visits: &Visits,
) -> Sample {
    let [rest_pings, own_pings] = spans.map(|(from, until)| {
        let within = pings.iter().filter(|ping| ping.sent >= from && ping.sent < until);
        let mut millis: Vec<f64> =
            within.map(|ping| ping.took.map_or(LOST, |took| took.min(LOST)).as_secs_f64() * 1000.0).collect();
        millis.sort_by(f64::total_cmp);
        millis
    });
    let lost = LOST.as_secs_f64() * 1000.0;
    let part = |millis: &[f64], part| percentile(millis, part).unwrap_or(lost);
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let mut sample = Sample::default()
        .with(MBIT, mbit)
        .with(REST_MBIT, rest_mbit)
        .with(RATIO, mbit / rest_mbit)
        .with(PING_P50, part(&own_pings, 0.5))
        .with(PING_P99, part(&own_pings, 0.99))
        .with(REST_P99, part(&rest_pings, 0.99))
        .with(PINGS_LOST, own_pings.iter().filter(|millis| **millis >= lost).count() as f64)
        .with(CPU, after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds * 100.0);
    if let Some((then, now)) = before.status.as_ref().zip(after.status.as_ref()) {
        sample = of_weft(sample, then, now, seconds);
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
fn of_weft(sample: Sample, then: &StatusReport, now: &StatusReport, seconds: f64) -> Sample {
    let sum = |report: &StatusReport, wanted: &dyn Fn(&str) -> bool| -> u64 {
        let stages = report.times.stages.iter().filter(|stage| wanted(&stage.stage));
        stages.map(|stage| stage.times.sum_ns).sum()
    };
    let grown = |wanted: &dyn Fn(&str) -> bool| sum(now, wanted).saturating_sub(sum(then, wanted)) as f64;
    // The stages are sampled in a part of the turns; all turns are timed.
    let all = grown(&|_| true);
    let part = if all > 0.0 { grown(&|stage| stage == "handshakes") / all } else { 0.0 };
    let turns = now.times.turns.sum_ns.saturating_sub(then.times.turns.sum_ns) as f64 * 1e-9;
    let dropped = |reason| now.dropped_for(reason).saturating_sub(then.dropped_for(reason));
    let overflows = now.udp.receive_overflows.saturating_sub(then.udp.receive_overflows);
    sample
        .with(HANDSHAKES, part * turns / seconds * 100.0)
        .with(TURN, percentile_of(&then.times.turns, &now.times.turns, 0.999) * 1e-6)
        .with(STAGING_FULL, dropped(DropReason::StagingFull) as f64)
        .with(OVERFLOWS, overflows as f64)
}

/// Returns the upper bound in nanoseconds of the bucket that contains the percentile `part` of the values
/// added to the histogram between `then` and `now`.
fn percentile_of(then: &HistogramReport, now: &HistogramReport, part: f64) -> f64 {
    /// Value for the last bucket, which has no bound.
    const ENDLESS: f64 = 2e9;
    let before =
        |bound: Option<u64>| then.buckets.iter().find(|(of, _)| *of == bound).map_or(0, |(_, count)| *count);
    let mut grown: Vec<(f64, u64)> = now
        .buckets
        .iter()
        .map(|(bound, count)| {
            (bound.map_or(ENDLESS, |bound| bound as f64), count.saturating_sub(before(*bound)))
        })
        .collect();
    grown.retain(|(_, count)| *count > 0);
    grown.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let all: u64 = grown.iter().map(|(_, count)| count).sum();
    let mut rank = (part * all as f64).ceil();
    let found = grown.iter().find(|(_, count)| {
        rank -= *count as f64;
        rank <= 0.0
    });
    found.map_or(0.0, |(bound, _)| *bound)
}
