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

impl crate::Tunnel {
    /// Returns which of the packet threads of the interface this tunnel is for.
    #[inline]
    pub fn shard(&self) -> Shard {
        self.by_index.shard()
    }
}
