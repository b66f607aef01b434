//! Detects jumps by comparing pairs of the system's clocks, of which only one advances meanwhile.

use std::time::Duration;

/// The shortest jump that is reported: shorter jumps do not matter, and a thread may be delayed as long
/// between reading two clocks.
const SHORTEST: Duration = Duration::from_secs(1);

/// By how much one clock was ahead of another when they were last compared.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) before: Duration,
}

impl Ahead {
    pub(super) fn new(total: Duration) -> Self {
        Self { before: total }
    }

    /// Returns the increase since the last comparison, if it is at least [`SHORTEST`].
    pub(super) fn now(&mut self, total: Duration) -> Option<Duration> {
        let more = total.checked_sub(self.before).filter(|more| *more >= SHORTEST)?;
        self.before = total;
        Some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_slept_since_the_last_time_is_told_once() {
        let mut asleep = Ahead::new(secs(100));
        assert_eq!(asleep.now(secs(100)), None);
        assert_eq!(asleep.now(secs(160)), Some(secs(60)));
        assert_eq!(asleep.now(secs(160)), None);
        assert_eq!(asleep.now(secs(165)), Some(secs(5)));
    }

    #[test]
    fn clocks_that_are_read_one_after_the_other_do_not_make_a_sleep() {
        let mut asleep = Ahead::new(secs(100));
        assert_eq!(asleep.now(secs(100) + Duration::from_millis(900)), None);
        assert_eq!(asleep.now(secs(99)), None);
        // Short sleeps add up.
        assert_eq!(asleep.now(secs(102)), Some(secs(2)));
    }
}
