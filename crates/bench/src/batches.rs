//! Sizes of the batches that weft passes to the kernel.

use std::iter::Sum;

use serde::Serialize;
use weft_report::bucket_label;

/// Sends, counted by the number of datagrams in each: at most 1, 2, 4, 8, 16, 32 and 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Batches(pub(crate) [u64; 7]);

impl Batches {
    /// Returns the difference to `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        self.with(before, u64::saturating_sub)
    }

    /// Returns for each size a label and its share of all sends; `None` if nothing was sent.
    pub(crate) fn shares(self) -> Option<[(String, f64); 7]> {
        let all: u64 = self.0.iter().sum();
        let share = |bucket: usize| (bucket_label(bucket), self.0[bucket] as f64 / all as f64);
        (all > 0).then(|| std::array::from_fn(share))
    }

    fn with(self, other: Self, together: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|bucket| together(self.0[bucket], other.0[bucket])))
    }
}

impl Sum for Batches {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, batches| sum.with(batches, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_sent_since() {
        let before = Batches([5, 0, 0, 0, 0, 0, 1]);
        let now = [before, Batches([1, 0, 0, 0, 0, 0, 3])].into_iter().sum::<Batches>();
        let shares = now.since(before).shares().unwrap();
        assert_eq!((shares[0].1, shares[6].1), (0.25, 0.75));
        assert_eq!(before.since(before).shares(), None);
    }
}
