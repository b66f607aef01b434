//! The share of one packet thread in the peers of an interface.

/// One of the packet threads that share the peers of an interface. Each has a [`Tunnel`](crate::Tunnel) with
/// its own peers, and knows of the others' peers to which thread they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: u16,
    count: u16,
}

impl Shard {
    /// The shard of an interface with one packet thread.
    pub const ONLY: Self = Self { number: 0, count: 1 };

    /// Returns shard `number` of `count` shards. `count` is at least 1, and `number` is below `count`.
    pub fn new(number: u16, count: u16) -> Self {
        debug_assert!(number < count, "shard {number} of {count}");
        let count = count.max(1);
        Self { number: number.min(count - 1), count }
    }

    /// Returns the number of the shard, from 0.
    pub fn number(self) -> u16 {
        self.number
    }

    /// Returns the number of shards of the interface.
    pub fn count(self) -> u16 {
        self.count
    }

    /// Returns the shard that messages with this receiver index go to: the four bytes of the index as they
    /// are on the wire, read big endian as the kernel's socket selection reads them, modulo the count.
    #[inline]
    pub fn of_index(self, index: u32) -> u16 {
        (index.swap_bytes() % u32::from(self.count)) as u16
    }

    /// Returns the shard that messages with this receiver index go to, if it is not this shard.
    #[inline]
    pub(crate) fn other_of_index(self, index: u32) -> Option<u16> {
        if self.count == 1 {
            return None;
        }
        Some(self.of_index(index)).filter(|shard| *shard != self.number)
    }

    /// Draws a receiver index of this shard. All of them are equally likely.
    pub(crate) fn draw_index(self) -> u32 {
        if self.count == 1 {
            return rand::random();
        }
        let (number, count) = (u32::from(self.number), u32::from(self.count));
        let last = (u32::MAX - number) / count;
        (number + count * rand::random_range(0..=last)).swap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_of_an_index_is_its_bytes_on_the_wire_read_big_endian() {
        for bytes in [[0, 0, 0, 5], [1, 2, 3, 4], [255; 4]] {
            let index = u32::from_le_bytes(bytes);
            for count in [1, 2, 3, 8, u16::MAX] {
                let shard = Shard::new(0, count);
                assert_eq!(u32::from(shard.of_index(index)), u32::from_be_bytes(bytes) % u32::from(count));
                assert_eq!(shard.other_of_index(index).unwrap_or(0), shard.of_index(index));
            }
        }
    }

    #[test]
    fn indices_are_of_their_shard_and_random_in_everything_else() {
        for count in [1, 2, 3, 8, 1000, u16::MAX] {
            for number in [0, count / 2, count - 1] {
                let shard = Shard::new(number, count);
                assert!((0..1000).all(|_| shard.of_index(shard.draw_index()) == number));
                assert!((0..1000).all(|_| shard.other_of_index(shard.draw_index()).is_none()));
            }
        }
        for shard in [Shard::ONLY, Shard::new(1, 3)] {
            let draws: Vec<u32> = (0..4000).map(|_| shard.draw_index()).collect();
            for bit in 0..32 {
                let set = draws.iter().filter(|index| *index >> bit & 1 == 1).count();
                assert!((1600..2400).contains(&set), "bit {bit} of {shard:?} is set {set} times");
            }
        }
    }
}
