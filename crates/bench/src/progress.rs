//! Progress messages on standard error.

use std::time::Instant;

use crate::case::Case;
use crate::metric::Sample;

/// Counts the measurements and estimates the remaining time.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Option<Instant>,
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { began: None, done: 0, total }
    }

    /// Prints a message.
    pub(crate) fn say(&self, text: &str) {
        eprintln!("{text}");
    }

    /// Starts the clock for the estimate, at the first measurement.
    pub(crate) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    /// Prints the result of a measurement.
    pub(crate) fn measured(&mut self, case: Case, name: &str, result: Result<&Sample, &str>) {
        self.done += 1;
        let figures = match result {
            Ok(sample) => figures(case, sample),
            Err(error) => format!("failed: {error}"),
        };
        let (done, total) = (self.done, self.total);
        let left = self.left().map(|left| format!("  ({left} left)")).unwrap_or_default();
        eprintln!("{done:>4}/{total}  {:<22} {name:<14} {figures}{left}", case.title());
    }

    fn left(&self) -> Option<String> {
        let spent = self.began?.elapsed().as_secs_f64();
        let seconds = spent / self.done as f64 * self.total.saturating_sub(self.done) as f64;
        Some(if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) })
    }
}

/// Formats the first three figures of the case, which fit a line.
fn figures(case: Case, sample: &Sample) -> String {
    let figures = case.columns().iter().filter_map(|metric| {
        let value = sample.get(*metric)?;
        Some(format!("{} {}", metric.format(value), metric.title()))
    });
    figures.take(3).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Metric;

    #[test]
    fn a_line_shows_the_first_figures_of_the_case() {
        let sample = Sample::default()
            .with(Metric::PingP99Ms, 0.2)
            .with(Metric::PingP50Ms, 0.1)
            .with(Metric::PingsLost, 0.0)
            .with(Metric::GbitPerSecond, 1.0);
        assert_eq!(figures(Case::Ping, &sample), "0.100 p50 ms, 0.200 p99 ms, 0 pings lost");
    }
}
