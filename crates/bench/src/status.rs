//! What the status reports of a weft say about the time between two of them.

use weft_report::{HistogramReport, StatusReport};

/// The reports at two moments.
#[derive(Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) then: &'a StatusReport,
    pub(crate) now: &'a StatusReport,
}

impl Between<'_> {
    /// Returns by how much a counter grew.
    pub(crate) fn grown(self, counter: impl Fn(&StatusReport) -> u64) -> f64 {
        counter(self.now).saturating_sub(counter(self.then)) as f64
    }

    /// Returns the nanoseconds that the packet threads spent in a stage.
    pub(crate) fn stage_ns(self, stage: &str) -> f64 {
        let sampled = |wanted: &dyn Fn(&str) -> bool| {
            self.grown(|report| {
                let stages = report.times.stages.iter().filter(|known| wanted(&known.stage));
                stages.map(|known| known.times.sum_ns).sum()
            })
        };
        // The stages are sampled in a part of the turns; all turns are timed.
        let all = sampled(&|_| true);
        let part = if all > 0.0 { sampled(&|known| known == stage) / all } else { 0.0 };
        part * self.grown(|report| report.times.turns.sum_ns)
    }

    /// Returns the upper bound in nanoseconds of the bucket that contains the percentile `part` of the turns.
    pub(crate) fn turn_ns(self, part: f64) -> f64 {
        /// Value for the last bucket, which has no bound.
        const ENDLESS: u64 = 2_000_000_000;
        let [then, now]: [&HistogramReport; 2] = [self.then, self.now].map(|report| &report.times.turns);
        let before = |bound| then.buckets.iter().find(|(of, _)| *of == bound).map_or(0, |(_, count)| *count);
        let mut grown: Vec<(u64, u64)> = now
            .buckets
            .iter()
            .map(|(bound, count)| (bound.unwrap_or(ENDLESS), count.saturating_sub(before(*bound))))
            .filter(|(_, count)| *count > 0)
            .collect();
        grown.sort_unstable();
        let all: u64 = grown.iter().map(|(_, count)| count).sum();
        let mut rank = (part * all as f64).ceil();
        let found = grown.iter().find(|(_, count)| {
            rank -= *count as f64;
            rank <= 0.0
        });
        found.map_or(0.0, |(bound, _)| *bound as f64)
    }
}
