//! The end of slow start before the queue overflows: round trip times that stay above the least say that the
//! window is larger than the path.
//!
//! The rise is that of HyStart++ (RFC 9406), and growth ends with it as in Linux. Samples count as they come,
//! and not from the start of a round, since a receiver that joins segments gives few of them.

/// The rise over the least round trip time: an eighth of it, within these bounds.
const LEAST_RISE: u64 = 4_000_000;
const MOST_RISE: u64 = 16_000_000;
/// Samples in a row that have to be late, and the share of a round trip that they span: what was delayed
/// alone says nothing.
const SAMPLES: u32 = 8;
const SHARE: u64 = 16;

/// Late samples in a row, and when the first of them came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlowStart {
    late: u32,
    since: u64,
}

impl SlowStart {
    /// Takes a sample. Returns true if the window is large enough.
    pub(super) fn ends(&mut self, sample: u64, least: u64, now: u64) -> bool {
        if sample < least + (least / 8).clamp(LEAST_RISE, MOST_RISE) {
            self.late = 0;
            return false;
        }
        if self.late == 0 {
            self.since = now;
        }
        self.late += 1;
        self.late >= SAMPLES && now.saturating_sub(self.since) >= least / SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::MS;
    use super::*;

    #[test]
    fn eight_late_samples_in_a_row_end_it() {
        let ends = |samples: &[u64], interval: u64| {
            let mut slow_start = SlowStart::default();
            let times = (0..).map(|n| n * interval);
            samples.iter().zip(times).position(|(sample, now)| slow_start.ends(sample * MS, 80 * MS, now))
        };
        assert_eq!(ends(&[90; 20], MS), Some(7));
        // A burst that came late as one.
        assert_eq!(ends(&[90; 20], MS / 4), None);
        assert_eq!(ends(&[89; 20], MS), None);
        assert_eq!(ends(&[&[90, 90, 80][..], &[90; 8]].concat(), MS), Some(10));
    }
}
