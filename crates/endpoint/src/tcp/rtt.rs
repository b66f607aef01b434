//! Round trip time and retransmission timeout (RFC 6298).

use std::time::Duration;

/// The timeout before the first sample.
pub(crate) const INITIAL_RTO: u64 = 1_000_000_000;
/// The timeout if the first segment was lost and there is no sample (RFC 6298, section 5.7).
const RTO_AFTER_SYN_LOSS: u64 = 3_000_000_000;
/// What the timeout is longer than the smoothed round trip time, at least. As Linux: RFC 6298 says 1 s for
/// the whole, which is for clocks and delayed acknowledgements of its time.
const MIN_VARIATION: u64 = 200_000_000;
/// The longest timeout.
pub(crate) const MAX_RTO: u64 = 60_000_000_000;
/// How long the least round trip time counts.
const MIN_RTT_WINDOW: u64 = 300_000_000_000;

/// The estimator. All times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct Rtt {
    smoothed: u64,
    variation: u64,
    min: u64,
    min_at: u64,
    base: u64,
    backoff: u32,
}

impl Rtt {
    pub(crate) fn new() -> Self {
        Self { smoothed: 0, variation: 0, min: u64::MAX, min_at: 0, base: INITIAL_RTO, backoff: 0 }
    }

    /// Adds a sample of something that was sent once.
    pub(crate) fn sample(&mut self, rtt: u64, now: u64) {
        // A clock that stands must not make a zero, which says that there is no sample.
        let rtt = rtt.clamp(1, MAX_RTO);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (3 * self.variation + self.smoothed.abs_diff(rtt)) / 4;
            self.smoothed = (7 * self.smoothed + rtt) / 8;
        }
        if rtt <= self.min || now.saturating_sub(self.min_at) > MIN_RTT_WINDOW {
            (self.min, self.min_at) = (rtt, now);
        }
        self.base = (self.smoothed + (4 * self.variation).max(MIN_VARIATION)).min(MAX_RTO);
    }

    /// The first segment was lost, and there is no sample.
    pub(crate) fn syn_was_lost(&mut self) {
        if self.smoothed == 0 {
            self.base = RTO_AFTER_SYN_LOSS;
        }
    }

    /// Returns the smoothed time, if there was a sample.
    pub(crate) fn smoothed(&self) -> Option<u64> {
        (self.smoothed > 0).then_some(self.smoothed)
    }

    /// Returns the least time, if there was a sample.
    pub(crate) fn min(&self) -> Option<u64> {
        (self.min < u64::MAX).then_some(self.min)
    }

    /// Returns the timeout, doubled for each expiration.
    pub(crate) fn timeout(&self) -> u64 {
        self.base.saturating_mul(1 << self.backoff.min(16)).min(MAX_RTO)
    }

    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    pub(crate) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    pub(crate) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Returns the smoothed time, its variation, and the least time.
    pub(crate) fn figures(&self) -> [Duration; 3] {
        [self.smoothed, self.variation, self.min().unwrap_or(0)].map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_timeout_follows_rfc_6298() {
        let mut rtt = Rtt::new();
        assert_eq!((rtt.timeout(), rtt.smoothed()), (1000 * MS, None));
        rtt.sample(400 * MS, 0);
        // SRTT 400, RTTVAR 200.
        assert_eq!(rtt.timeout(), 1200 * MS);
        rtt.sample(400 * MS, 1);
        assert_eq!(rtt.timeout(), 1000 * MS);
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.timeout(), 4000 * MS);
        (0..100).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(), MAX_RTO);
        rtt.reset_backoff();
        (0..100).for_each(|_| rtt.sample(0, 2));
        assert!(rtt.timeout() < 201 * MS && rtt.smoothed().is_some() && rtt.min() == Some(1));
        rtt.sample(u64::MAX, 3);
        assert!(rtt.timeout() <= MAX_RTO);
    }
}
