//! A token bucket that counts the tokens that are missing. An untouched bucket is full, whatever its size.

use std::time::Instant;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Tokens that were taken and have not grown back. The caller keeps rate and size, and may change them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    taken: u64,
    /// Fraction of a token that has grown back, in billionths.
    rest: u32,
    since: Option<Instant>,
}

impl Bucket {
    /// Grows tokens back at `per_second` for the time since the last call. `now` never goes back.
    #[inline]
    pub(crate) fn refill(&mut self, per_second: u64, now: Instant) {
        let since = self.since.replace(now);
        if let Some(since) = since.filter(|since| *since != now && self.taken > 0) {
            self.grow(per_second, now.duration_since(since).as_nanos());
        }
    }

    fn grow(&mut self, per_second: u64, nanos: u128) {
        let grown = nanos * u128::from(per_second) + u128::from(self.rest);
        let whole = u64::try_from(grown / NANOS_PER_SECOND).unwrap_or(u64::MAX);
        // A full bucket does not save a fraction of a token.
        self.rest = if whole < self.taken { (grown % NANOS_PER_SECOND) as u32 } else { 0 };
        self.taken = self.taken.saturating_sub(whole);
    }

    /// Reports whether a bucket of `size` tokens has a token left.
    #[inline]
    pub(crate) fn has_token(&self, size: u64) -> bool {
        self.taken < size
    }

    /// Takes tokens, even more than are left: the bucket then owes the difference.
    #[inline]
    pub(crate) fn take(&mut self, tokens: u64) {
        self.taken = self.taken.saturating_add(tokens);
    }

    /// Takes one token from a bucket of `size` tokens that grows by `per_second`. Returns false if no token
    /// is left.
    pub(crate) fn try_take(&mut self, per_second: u64, size: u64, now: Instant) -> bool {
        self.refill(per_second, now);
        let granted = self.has_token(size);
        self.take(u64::from(granted));
        granted
    }

    /// Cancels what the bucket owes beyond being empty at `size` tokens.
    pub(crate) fn forgive(&mut self, size: u64) {
        self.taken = self.taken.min(size);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_grows_back_to_the_token_however_often_it_is_looked_at() {
        // 7 divides neither a second nor its thousandths.
        for step in [1, 3, 997, 1_000_003, 99_999_999] {
            let (mut bucket, start) = (Bucket::default(), Instant::now());
            bucket.refill(7, start);
            bucket.take(1000);
            let mut elapsed = 0;
            let end = step * 10_000;
            while elapsed < end {
                elapsed += step;
                bucket.refill(7, start + Duration::from_nanos(elapsed));
            }
            assert_eq!(bucket.taken, 1000u64.saturating_sub(end * 7 / 1_000_000_000), "steps of {step} ns");
        }
    }

    #[test]
    fn a_full_bucket_saves_nothing_for_later() {
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        assert!(bucket.try_take(10, 5, start));
        let later = start + Duration::from_millis(199);
        bucket.refill(10, later);
        assert_eq!(bucket.taken, 0);
        bucket.take(1);
        bucket.refill(10, later + Duration::from_millis(99));
        assert_eq!(bucket.taken, 1, "the 99 ms of before were lost");
        bucket.refill(10, later + Duration::from_millis(100));
        assert_eq!(bucket.taken, 0);
    }

    #[test]
    fn what_is_owed_is_paid_back_first() {
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        bucket.refill(100, start);
        bucket.take(250);
        assert!(!bucket.try_take(100, 50, start + Duration::from_secs(2)));
        assert!(bucket.try_take(100, 50, start + Duration::from_millis(2010)));
        assert!(!bucket.try_take(100, 50, start + Duration::from_millis(2010)));
    }
}
