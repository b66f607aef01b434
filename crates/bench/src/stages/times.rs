//! The stages, and their times.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::stats::Summary;

/// A stage of the packet path, in the order of processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    TunRead,
    Seal,
    Send,
    Receive,
    Open,
    /// Planning the writes of a batch, and the same number of system calls that do nothing.
    Coalesce,
    /// Coalescing and the write to the TUN, which cannot be separated from outside.
    CoalesceAndWrite,
}

const STAGES: usize = 7;

impl Stage {
    const ALL: [Self; STAGES] = [
        Self::TunRead,
        Self::Seal,
        Self::Send,
        Self::Receive,
        Self::Open,
        Self::Coalesce,
        Self::CoalesceAndWrite,
    ];
}

/// Nanoseconds per packet of each stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct StageCosts {
    pub(crate) tun_read: Summary,
    pub(crate) split_and_encrypt: Summary,
    pub(crate) udp_send: Summary,
    pub(crate) udp_receive: Summary,
    pub(crate) decrypt: Summary,
    pub(crate) coalesce: Summary,
    pub(crate) tun_write: Summary,
}

/// The times of the stages of one burst.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times([Duration; STAGES]);

impl Times {
    /// Runs `work` and adds its time to the stage.
    pub(super) fn time<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0[stage as usize] += start.elapsed();
        result
    }
}

/// The times per packet of all bursts of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Bursts([Vec<f64>; STAGES]);

impl Bursts {
    /// Adds a burst of `packets` packets. A stage without time was not run.
    pub(super) fn add(&mut self, times: &Times, packets: u64) {
        for (all, time) in self.0.iter_mut().zip(times.0) {
            if !time.is_zero() {
                all.push(time.as_nanos() as f64 / packets as f64);
            }
        }
    }

    /// Returns medians over the bursts; `None` if a stage was never run.
    pub(super) fn costs(&self) -> Option<StageCosts> {
        let [tun_read, split_and_encrypt, udp_send, udp_receive, decrypt, coalesce, both] =
            Stage::ALL.map(|stage| middle(&self.0[stage as usize]));
        let coalesce = coalesce?;
        Some(StageCosts {
            tun_read: tun_read?,
            split_and_encrypt: split_and_encrypt?,
            udp_send: udp_send?,
            udp_receive: udp_receive?,
            decrypt: decrypt?,
            coalesce,
            tun_write: less(both?, coalesce.median),
        })
    }
}

/// Summarizes the middle half of the values: the median, and the quartiles as range. Bursts disturbed by
/// other work are excluded.
pub(super) fn middle(values: &[f64]) -> Option<Summary> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    Summary::of(values.get(quarter..values.len() - quarter)?.iter().copied())
}

fn less(summary: Summary, by: f64) -> Summary {
    let rest = |value: f64| (value - by).max(0.0);
    Summary { median: rest(summary.median), lowest: rest(summary.lowest), highest: rest(summary.highest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_that_was_disturbed_does_not_count() {
        let mut bursts = Bursts::default();
        for nanoseconds in [100, 110, 120, 9_000] {
            let mut times = Times([Duration::from_nanos(nanoseconds); STAGES]);
            times.0[Stage::CoalesceAndWrite as usize] *= 2;
            bursts.add(&times, 10);
        }
        let costs = bursts.costs().unwrap();
        assert_eq!(costs.tun_read, Summary { median: 11.5, lowest: 11.0, highest: 12.0 });
        assert_eq!(costs.tun_write.median, 11.5);
    }

    #[test]
    fn without_a_burst_there_are_no_costs() {
        assert_eq!(Bursts::default().costs(), None);
    }
}
