//! The result of one measurement.

use std::time::{Duration, Instant};

use serde::Serialize;
use weft_lab::flood::Sent;
use weft_report::{HistogramReport, StatusReport};
use weft_tunnel::DropReason;

use super::pinger::{LOST, Ping};
use super::visitors::Visits;
use crate::stats::percentile;

/// The gateway's counters at one moment.
pub(super) struct Moment {
    pub(super) at: Instant,
    pub(super) sent: Sent,
    pub(super) cpu: Duration,
    pub(super) status: Option<StatusReport>,
}

/// Figures of one gateway beside one attack.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// TCP payload before the attack and beside it.
    pub(super) rest_mbit: f64,
    pub(super) mbit: f64,
    pub(super) ratio: f64,
    pub(super) rest_p99_ms: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) pings_lost: usize,
    /// CPU time of the gateway's process, in per cent of one core.
    pub(super) cpu_percent: f64,
    /// Figures that a weft reports about itself.
    pub(super) weft: Option<Inner>,
    pub(super) sent_per_second: f64,
    pub(super) proven_per_second: f64,
    pub(super) cookies: u64,
    #[serde(flatten)]
    pub(super) visits: Visits,
}

/// Figures that only the gateway can report.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Inner {
    /// Time of the stage "handshakes" of the packet thread, in per cent of all time.
    pub(super) handshakes_percent: f64,
    pub(super) turn_p999_ms: f64,
    pub(super) staging_full: u64,
    pub(super) receive_overflows: u64,
}

impl Figures {
    pub(super) fn new(
        [rest_mbit, mbit]: [f64; 2],
        pings: &[Ping],
        spans: [(Instant, Instant); 2],
        before: &Moment,
        after: &Moment,
        visits: Visits,
    ) -> Self {
        let [rest_pings, own_pings] = spans.map(|(from, until)| {
            let within = pings.iter().filter(|ping| ping.sent >= from && ping.sent < until);
            let mut millis: Vec<f64> = within
                .map(|ping| ping.took.map_or(LOST, |took| took.min(LOST)).as_secs_f64() * 1000.0)
                .collect();
            millis.sort_by(f64::total_cmp);
            millis
        });
        let lost = LOST.as_secs_f64() * 1000.0;
        let part = |millis: &[f64], part| percentile(millis, part).unwrap_or(lost);
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let per_second = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        Self {
            rest_mbit,
            mbit,
            ratio: if rest_mbit > 0.0 { mbit / rest_mbit } else { 0.0 },
            rest_p99_ms: part(&rest_pings, 0.99),
            p50_ms: part(&own_pings, 0.5),
            p99_ms: part(&own_pings, 0.99),
            pings_lost: own_pings.iter().filter(|millis| **millis >= lost).count(),
            cpu_percent: after.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds * 100.0,
            weft: before
                .status
                .as_ref()
                .zip(after.status.as_ref())
                .map(|(then, now)| Inner::new(then, now, seconds)),
            sent_per_second: per_second(after.sent.datagrams, before.sent.datagrams),
            proven_per_second: per_second(after.sent.proven, before.sent.proven),
            cookies: after.sent.cookies,
            visits,
        }
    }

    /// Returns the most initiations that a stranger needed; `None` if a stranger did not get a session.
    pub(super) fn tries(&self) -> Option<u64> {
        self.visits.strangers.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Returns how many first packets to awaited peers arrived, and how many there were.
    pub(super) fn first_packets(&self) -> (usize, usize) {
        let all = &self.visits.first_packets;
        (all.iter().flatten().count(), all.len())
    }

    /// Formats the figures as one line for the terminal.
    pub(super) fn line(&self) -> String {
        let tries = self.tries().map_or("not all in".to_owned(), |tries| format!("in with {tries}"));
        let inner = self.weft.map_or(String::new(), |inner| {
            format!(", handshakes {:.1} %, turn p99.9 {:.2} ms", inner.handshakes_percent, inner.turn_p999_ms)
        });
        format!(
            "{:.1} of {:.1} Mbit/s ({:.2}), ping {:.2}/{:.2} ms, {} lost, CPU {:.0} %{inner}, strangers {tries}, \
             {:.0}/s sent, {:.0}/s proven",
            self.mbit,
            self.rest_mbit,
            self.ratio,
            self.p50_ms,
            self.p99_ms,
            self.pings_lost,
            self.cpu_percent,
            self.sent_per_second,
            self.proven_per_second,
        )
    }
}

impl Inner {
    fn new(then: &StatusReport, now: &StatusReport, seconds: f64) -> Self {
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
        Self {
            handshakes_percent: part * turns / seconds * 100.0,
            turn_p999_ms: percentile_of(&then.times.turns, &now.times.turns, 0.999) * 1e-6,
            staging_full: dropped(DropReason::StagingFull),
            receive_overflows: now.udp.receive_overflows.saturating_sub(then.udp.receive_overflows),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_counts_what_was_added() {
        let histogram = |buckets: &[(Option<u64>, u64)]| HistogramReport {
            buckets: buckets.to_vec(),
            ..HistogramReport::default()
        };
        let then = histogram(&[(Some(1000), 500), (Some(8000), 7)]);
        let now = histogram(&[(Some(1000), 1498), (Some(8000), 8), (None, 1)]);
        assert_eq!(percentile_of(&then, &now, 0.998), 1000.0);
        assert_eq!(percentile_of(&then, &now, 0.999), 8000.0);
        assert_eq!(percentile_of(&then, &now, 1.0), 2e9);
        assert_eq!(percentile_of(&now, &now, 0.999), 0.0);
    }
}
