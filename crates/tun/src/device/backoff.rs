//! When to write again to a full queue that does not announce room (`WriteError::FullUnannounced`).

use std::time::Duration;

/// Such a queue usually has room again within a millisecond.
const FIRST: Duration = Duration::from_micros(100);
const LAST: Duration = Duration::from_millis(1);
/// After this time the packet thread drops data for the device (`DropReason::TunStalled`), and the pause only
/// decides how soon the device is noticed to work again.
const STALLED_AFTER: Duration = Duration::from_secs(1);
const STALLED: Duration = Duration::from_millis(10);

/// The pauses between the attempts to write one packet.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pause: Duration,
    waited: Duration,
}

impl Backoff {
    /// Starts again: a packet was written.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns how long to wait before the next attempt.
    pub(super) fn next_pause(&mut self) -> Duration {
        self.pause = if self.waited >= STALLED_AFTER { STALLED } else { (2 * self.pause).clamp(FIRST, LAST) };
        self.waited += self.pause;
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_nothing_is_written() {
        let mut backoff = Backoff::default();
        let first = std::array::from_fn(|_| backoff.next_pause().as_micros());
        assert_eq!(first, [100, 200, 400, 800, 1000, 1000]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), FIRST);
    }

    #[test]
    fn a_stalled_queue_is_tried_a_hundred_times_a_second() {
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        let mut waited = Duration::ZERO;
        while waited < Duration::from_secs(11) {
            waited += backoff.next_pause();
            attempts += 1;
        }
        assert!(
            (1990..2010).contains(&attempts),
            "{attempts}: a thousand in the first second, then 100 each"
        );
    }
}
