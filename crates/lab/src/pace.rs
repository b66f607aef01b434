//! An even rate of items a second, independent of how long the sleeps really take.

use std::time::{Duration, Instant};

/// Shorter sleeps are skipped until more time has accumulated: a timer is not more exact than this.
const SHORTEST_SLEEP: Duration = Duration::from_micros(200);
/// A backlog beyond this is discarded: after a pause the rate is restored, but the missed items are not
/// caught up.
const LONGEST_ARREARS: Duration = Duration::from_millis(20);

/// Computes when the next item is due.
#[derive(Debug)]
pub struct Pace {
    nanos_per_item: u64,
    due: Instant,
}

impl Pace {
    /// Paces `items_per_second`, starting at `now`.
    pub fn new(items_per_second: u32, now: Instant) -> Self {
        Self { nanos_per_item: 1_000_000_000 / u64::from(items_per_second.max(1)), due: now }
    }

    /// Records that `items` items were sent.
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
        // A pause of a second leaves a backlog of 20 ms, not a second's worth of datagrams at once.
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.sleep(later), Duration::ZERO);
        pace.spent(30);
        assert_eq!(pace.sleep(later), Duration::from_millis(10));
    }
}
