//! Random numbers of a seed.

use std::time::Duration;

/// splitmix64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn happens(&mut self, percent: u64) -> bool {
        percent > 0 && self.next() % 100 < percent
    }

    /// Returns a duration up to `longest`, of any magnitude from a microsecond on.
    pub(crate) fn up_to(&mut self, longest: Duration) -> Duration {
        let longest = longest.as_micros().max(2) as u64;
        let magnitude = self.next() % u64::from(longest.ilog2() + 1);
        Duration::from_micros((self.next() % (2 << magnitude)).min(longest))
    }

    pub(crate) fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
