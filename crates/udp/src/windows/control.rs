//! Ancillary data of a message: a header with length, level and type, then the value, both aligned as a
//! pointer.

/// Bytes of a header, and the alignment of headers and values.
const HEADER: usize = (size_of::<usize>() + 2 * size_of::<i32>()).next_multiple_of(ALIGN);
const ALIGN: usize = align_of::<usize>();
/// Room for an address, a size and ECN, in each direction.
const CAPACITY: usize = 128;

/// A buffer of ancillary data.
#[derive(Debug)]
#[repr(C, align(16))]
pub(super) struct AncillaryBuffer {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl AncillaryBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: [0; CAPACITY], len: 0 }
    }

    /// Adds a value.
    pub(super) fn push(&mut self, level: i32, kind: i32, value: &[u8]) {
        let end = self.len + HEADER + value.len();
        debug_assert!(end.next_multiple_of(ALIGN) <= CAPACITY);
        let (length, rest) = self.bytes[self.len..end].split_at_mut(size_of::<usize>());
        length.copy_from_slice(&(HEADER + value.len()).to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[self.len + HEADER..end].copy_from_slice(value);
        self.len = end.next_multiple_of(ALIGN);
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Returns the bytes that were added.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that the system may write.
    pub(super) const fn capacity() -> usize {
        CAPACITY
    }

    /// Returns level, type and value of each entry in the first `len` bytes.
    pub(super) fn entries(&self, len: usize) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = &self.bytes[..len.min(CAPACITY)];
        std::iter::from_fn(move || {
            let (length, header) = rest.get(..HEADER)?.split_first_chunk()?;
            let (level, header) = header.split_first_chunk()?;
            let kind = header.first_chunk()?;
            let length = usize::from_ne_bytes(*length);
            let value = rest.get(HEADER..length)?;
            rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
            Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_out_as_they_were_added() {
        let mut control = AncillaryBuffer::new();
        control.push(0, 19, &[1, 2, 3, 4, 0, 0, 0, 0]);
        control.push(17, 2, &[5, 6, 7, 8]);
        control.push(41, 50, &[9; 20]);
        let entries: Vec<_> = control.entries(control.len()).collect();
        let expected: [(_, _, &[u8]); 3] =
            [(0, 19, &[1, 2, 3, 4, 0, 0, 0, 0]), (17, 2, &[5, 6, 7, 8]), (41, 50, &[9; 20])];
        assert_eq!(entries, expected);
    }

    #[test]
    fn lengths_that_do_not_fit_end_the_entries() {
        for length in [0, HEADER - 1, CAPACITY + 1, usize::MAX] {
            let mut control = AncillaryBuffer::new();
            control.push(0, 1, &[1; 4]);
            control.bytes[..size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(control.entries(CAPACITY).count(), 0, "{length}");
        }
        assert_eq!(AncillaryBuffer::new().entries(0).count(), 0);
    }
}
