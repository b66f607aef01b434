//! An even pace: so many datagrams a second, however long the sleeps take in truth.

use std::time::{Duration, Instant};

/// Sleeps shorter than this are put off until more is due: a timer is no more exact than that.
const SHORTEST_SLEEP: Duration = Duration::from_micros(200);
/// Arrears beyond this are forgotten: after a pause the pace is kept, not the sum.
const LONGEST_ARREARS: Duration = Duration::from_millis(20);

/// When the next of many items is due.
#[derive(Debug)]
pub struct Pace {
    nanos_per_item: u64,
    due: Instant,
}

impl Pace {
    /// So many items a second, from `now` on.
    pub fn new(items_per_second: u32, now: Instant) -> Self {
        Self { nanos_per_item: 1_000_000_000 / u64::from(items_per_second.max(1)), due: now }
    }

    /// So many items were sent.
    pub fn spent(&mut self, items: u64) {
        self.due += Duration::from_nanos(self.nanos_per_item * items);
    }

    /// Sleeps until the next item is due.
    pub fn wait(&mut self) {
        let sleep = self.sleep(Instant::now());
        if !sleep.is_zero() {
            std::thread::sleep(sleep);
        }
    }

    fn sleep(&mut self, now: Instant) -> Duration {
        self.due = self.due.max(now - LONGEST_ARREARS);
        let ahead = self.due.saturating_duration_since(now);
        if ahead < SHORTEST_SLEEP { Duration::ZERO } else { ahead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ahead_of_its_time_waits_and_arrears_are_bounded() {
        let start = Instant::now();
        let mut pace = Pace::new(1000, start);
        assert_eq!(pace.sleep(start), Duration::ZERO);
        pace.spent(10);
        assert_eq!(pace.sleep(start), Duration::from_millis(10));
        assert_eq!(pace.sleep(start + Duration::from_millis(10)), Duration::ZERO);
        // A second's pause leaves 20 ms of arrears, not a second's worth of datagrams at once.
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.sleep(later), Duration::ZERO);
        pace.spent(30);
        assert_eq!(pace.sleep(later), Duration::from_millis(10));
    }
}
