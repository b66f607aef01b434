//! What the status reports of a weft say about the time between two of them.

use weft_report::{HistogramReport, StatusReport};

#[derive(Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) then: &'a StatusReport,
    pub(crate) now: &'a StatusReport,
}

impl Between<'_> {
    pub(crate) fn grown(self, counter: impl Fn(&StatusReport) -> u64) -> f64 {
        counter(self.now).saturating_sub(counter(self.then)) as f64
    }

    /// Estimates the nanoseconds that the packet threads spent in a stage. The stages are sampled in a part
    /// of the turns; all turns are timed.
    pub(crate) fn stage_ns(self, stage: &str) -> f64 {
        self.share_of(stage) * self.grown(|report| report.times.turns.sum_ns)
    }

    pub(crate) fn turn_ns(self, part: f64) -> f64 {
        let turns = grown(&self.then.times.turns, &self.now.times.turns);
        let mut rank = (part * count(&turns)).ceil();
        let found = turns.iter().find(|(_, count)| {
            rank -= count;
            rank <= 0.0
        });
        found.map_or(0.0, |(bound, _)| *bound)
    }

    /// Estimates the part of their time that packet threads spend in a stage. Of the durations of each stage
    /// the longest tenth does not count: in these other work had the core.
    pub(crate) fn share_of(self, stage: &str) -> f64 {
        const COUNTS: f64 = 0.9;
        let (mut all, mut of_stage) = (0.0, 0.0);
        for now in &self.now.times.stages {
            let then = self.then.times.stages.iter().find(|then| then.stage == now.stage);
            let durations = then.map_or_else(Vec::new, |then| grown(&then.times, &now.times));
            let mut remaining = COUNTS * count(&durations);
            for (bound, count) in durations {
                let count = count.min(remaining);
                remaining -= count;
                all += bound * count;
                of_stage += if now.stage == stage { bound * count } else { 0.0 };
            }
        }
        if all > 0.0 { of_stage / all } else { 0.0 }
    }
}

/// Returns the buckets of the durations between two moments, by their upper bounds in nanoseconds.
fn grown(then: &HistogramReport, now: &HistogramReport) -> Vec<(f64, f64)> {
    /// Value for the last bucket, which has no bound.
    const ENDLESS: u64 = 2_000_000_000;
    let before = |bound| then.buckets.iter().find(|(of, _)| *of == bound).map_or(0, |(_, count)| *count);
    let grown = now
        .buckets
        .iter()
        .map(|(bound, count)| (bound.unwrap_or(ENDLESS) as f64, count.saturating_sub(before(*bound)) as f64));
    let mut grown: Vec<(f64, f64)> = grown.filter(|(_, count)| *count > 0.0).collect();
    grown.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    grown
}

fn count(buckets: &[(f64, f64)]) -> f64 {
    buckets.iter().map(|(_, count)| count).sum()
}
