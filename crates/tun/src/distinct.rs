//! About how many share a queue.

/// Bytes after which what was seen before the last so many is forgotten.
const WINDOW_BYTES: usize = 1 << 20;
/// For each number of bits that are set: how many set so many on average.
const COUNTS: [u16; 65] = counts();

const fn counts() -> [u16; 65] {
    /// Of one.
    const PARTS: u32 = 64;
    let mut counts = [1; 65];
    let (mut set, mut parts) = (1, 0);
    while set < counts.len() {
        // While so many bits are free, one in 64 / free sets another.
        let free = u64::BITS + 1 - set as u32;
        parts += PARTS * u64::BITS / free;
        counts[set] = ((parts + PARTS / 2) / PARTS) as u16;
        set += 1;
    }
    counts
}

/// About how many different ones the last 1 to 2 MiB of a queue are from: linear counting (Whang, Vander-Zanden and Taylor,
/// 1990) with 64 bits, so at most 303.
///
/// ```
/// let mut distinct = weft_tun::Distinct::default();
/// distinct.saw(0x9e37_79b9_7f4a_7c15, 1500);
/// distinct.saw(0x9e37_79b9_7f4a_7c15, 1500);
/// assert_eq!(distinct.count(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Distinct {
    now: u64,
    before: u64,
    bytes: usize,
}

impl Distinct {
    /// So many bytes were from the one with this hash, of which the highest six bits count.
    #[inline]
    pub fn saw(&mut self, hash: u64, bytes: usize) {
        self.now |= 1 << (hash >> 58);
        self.bytes += bytes;
        if self.bytes >= WINDOW_BYTES {
            *self = Self { now: 0, before: self.now, bytes: 0 };
        }
    }

    /// How many there are, at least 1.
    pub fn count(&self) -> usize {
        COUNTS[(self.now | self.before).count_ones() as usize].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes that are as good as random.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn it_is_about_as_many_as_there_are() {
        for count in [1, 2, 3, 8, 16, 60] {
            let mut distinct = Distinct::default();
            for number in 0..10 * count {
                distinct.saw(hash(number % count), 100);
            }
            let (least, most) = (count as usize * 2 / 3, count as usize * 3 / 2);
            assert!((least..=most).contains(&distinct.count()), "{} for {count}", distinct.count());
        }
        assert_eq!(Distinct::default().count(), 1);
        assert_eq!(COUNTS[64], 303);
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let mut distinct = Distinct::default();
        (0..20).for_each(|number| distinct.saw(hash(number), 100));
        for _ in 0..2 * WINDOW_BYTES / 1000 + 2 {
            distinct.saw(hash(1), 1000);
        }
        assert_eq!(distinct.count(), 1);
    }
}
