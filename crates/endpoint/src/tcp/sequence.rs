//! Sequence numbers (RFC 9293, section 3.4), unwrapped: the endpoint counts in offsets of 64 bits, which
//! compare like numbers. Only segments have sequence numbers of 32 bits.

/// The offset of the SYN. It is not 0, so that a sequence number before it has an offset too.
pub(crate) const SYN: u64 = 1 << 32;
/// The offset of the first byte of the stream.
pub(crate) const FIRST: u64 = SYN + 1;

/// One direction's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    initial: u32,
}

impl Sequence {
    /// `initial` is the number of the SYN.
    pub(crate) fn new(initial: u32) -> Self {
        Self { initial }
    }

    /// Returns the number of an offset.
    pub(crate) fn number(self, offset: u64) -> u32 {
        self.initial.wrapping_add(offset as u32)
    }

    /// Returns the offset with this number that is nearest to `near`, which is at least [`SYN`].
    pub(crate) fn offset(self, number: u32, near: u64) -> u64 {
        let distance = number.wrapping_sub(self.number(near)).cast_signed();
        near.wrapping_add_signed(i64::from(distance))
    }
}

/// Reports whether timestamp `a` is before `b` (RFC 7323, section 5.2).
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_on_where_numbers_wrap() {
        let sequence = Sequence::new(u32::MAX - 1);
        assert_eq!((sequence.number(SYN), sequence.number(FIRST + 1)), (u32::MAX - 1, 0));
        assert_eq!(sequence.offset(5, FIRST), SYN + 7);
        assert_eq!(sequence.offset(u32::MAX - 11, SYN), SYN - 10);
        let far = SYN + (7 << 32);
        assert_eq!(sequence.offset(sequence.number(far), far - (1 << 30)), far);
        assert_eq!(sequence.offset(sequence.number(far), far + (1 << 30)), far);
    }
}
