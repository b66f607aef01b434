//! Estimates the number of flows that share a queue.

/// Bytes of a window. The estimate covers the current window and the one before it.
const WINDOW_BYTES: usize = 1 << 20;
/// Indexed by the number of set bits: the mean number of hashes that set that many bits.
const COUNTS: [u16; 65] = counts();

const fn counts() -> [u16; 65] {
    /// Scale of the fixed-point sum: `PARTS` stands for 1.
    const PARTS: u32 = 64;
    let mut counts = [1; 65];
    let (mut set, mut parts) = (1, 0);
    while set < counts.len() {
        // With `free` bits unset, it takes 64 / free hashes on average to set another bit.
        let free = u64::BITS + 1 - set as u32;
        parts += PARTS * u64::BITS / free;
        counts[set] = ((parts + PARTS / 2) / PARTS) as u16;
        set += 1;
    }
    counts
}

/// Estimates the number of distinct hashes in the last 1 to 2 MiB of a queue: linear counting (Whang,
/// Vander-Zanden and Taylor, 1990) with 64 bits. The highest possible estimate is 303.
///
/// ```
/// let mut counter = weft_sched::LinearCounter::default();
/// counter.observe(0x9e37_79b9_7f4a_7c15, 1500);
/// counter.observe(0x9e37_79b9_7f4a_7c15, 1500);
/// assert_eq!(counter.count(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearCounter {
    now: u64,
    before: u64,
    bytes: usize,
}

impl LinearCounter {
    /// Counts `bytes` bytes of the flow with this hash. Uses the highest six bits of the hash.
    #[inline]
    pub fn observe(&mut self, hash: u64, bytes: usize) {
        self.now |= 1 << (hash >> 58);
        self.bytes += bytes;
        if self.bytes >= WINDOW_BYTES {
            *self = Self { now: 0, before: self.now, bytes: 0 };
        }
    }

    /// Returns the estimate, at least 1.
    pub fn count(&self) -> usize {
        COUNTS[(self.now | self.before).count_ones() as usize].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pseudo-random hash of `number`.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn the_estimate_is_within_half_of_the_number() {
        for count in [1, 2, 3, 8, 16, 60] {
            let mut counter = LinearCounter::default();
            for number in 0..10 * count {
                counter.observe(hash(number % count), 100);
            }
            let (least, most) = (count as usize * 2 / 3, count as usize * 3 / 2);
            assert!((least..=most).contains(&counter.count()), "{} for {count}", counter.count());
        }
        assert_eq!(LinearCounter::default().count(), 1);
        assert_eq!(COUNTS[64], 303);
    }

    #[test]
    fn sources_that_go_on_are_counted_once_at_any_time() {
        let mut counter = LinearCounter::default();
        for number in 0..3 * WINDOW_BYTES as u64 / 1000 {
            counter.observe(hash(number % 8), 1000);
            assert!(number < 8 || (5..=12).contains(&counter.count()), "{} after {number}", counter.count());
        }
    }

    #[test]
    fn a_source_that_stopped_is_forgotten() {
        let mut counter = LinearCounter::default();
        (0..20).for_each(|number| counter.observe(hash(number), 100));
        for _ in 0..2 * WINDOW_BYTES / 1000 + 2 {
            counter.observe(hash(1), 1000);
        }
        assert_eq!(counter.count(), 1);
    }
}
