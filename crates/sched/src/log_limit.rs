//! Keeps log lines that a remote can trigger from filling the disk.

use std::time::{Duration, Instant};

/// A rate limit for one cause of log lines: one line per interval, with the number of lines suppressed since
/// the last one.
///
/// Use one limit for each cause. It keeps no list of remotes, so that remotes cannot make it grow.
#[derive(Clone, Debug)]
pub struct LogLimit {
    interval: Duration,
    last: Option<Instant>,
    suppressed: u64,
}

impl Default for LogLimit {
    /// One line every 5 s.
    fn default() -> Self {
        Self::new(Duration::from_secs(5))
    }
}

impl LogLimit {
    /// Allows one line per interval.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, last: None, suppressed: 0 }
    }

    /// Returns the number of lines suppressed since the last one if a line may be logged now, else `None`.
    pub fn allow(&mut self, now: Instant) -> Option<u64> {
        let too_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval);
        if too_soon {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_an_interval_tells_how_many_were_left_out() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut limit = LogLimit::default();
        assert_eq!(limit.allow(at(0)), Some(0));
        assert_eq!(limit.allow(at(1)), None);
        assert_eq!(limit.allow(at(4)), None);
        assert_eq!(limit.allow(at(5)), Some(2));
        assert_eq!(limit.allow(at(6)), None);
        assert_eq!(limit.allow(at(60)), Some(1));
    }

    #[test]
    fn a_clock_that_steps_back_only_delays() {
        let now = Instant::now() + Duration::from_secs(100);
        let mut limit = LogLimit::new(Duration::from_secs(1));
        assert_eq!(limit.allow(now), Some(0));
        assert_eq!(limit.allow(now - Duration::from_secs(50)), None);
        assert_eq!(limit.allow(now + Duration::from_secs(1)), Some(1));
    }
}
