//! Buffers that applications and the endpoint hand to each other, and the pool that they come from.

/// Bytes of a small buffer, for connections that move little.
pub(crate) const SMALL: usize = 4 << 10;
/// Bytes of a large buffer.
pub(crate) const LARGE: usize = 64 << 10;

/// A buffer with some bytes in it. Applications read from and write to it without the endpoint.
///
/// Give an emptied one back by [`crate::Endpoint::give_back`], so that it is used again. A dropped one is
/// freed, which is correct and slower.
#[derive(Debug, Default)]
pub struct Chunk {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Chunk {
    /// Returns the bytes that are left.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the number of bytes that are left.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Reports whether no byte is left. From [`crate::Endpoint::take`]: the peer has finished.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Discards the first `count` bytes, or all if there are fewer.
    pub fn advance(&mut self, count: usize) {
        self.start += count.min(self.len());
    }

    /// Returns the room behind the bytes.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    /// Keeps the first `count` bytes of [`Self::spare_mut`], or all if there are fewer.
    pub fn commit(&mut self, count: usize) {
        self.end += count.min(self.buffer.len() - self.end);
    }

    /// Copies as much of `bytes` as there is room for, and returns how much that is.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare_mut();
        let count = spare.len().min(bytes.len());
        spare[..count].copy_from_slice(&bytes[..count]);
        self.commit(count);
        count
    }

    /// Wraps bytes `start..end` of a buffer.
    pub(crate) fn new(buffer: Box<[u8]>, start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= buffer.len());
        Self { buffer, start, end }
    }

    pub(crate) fn into_buffer(self) -> Box<[u8]> {
        self.buffer
    }

    pub(crate) fn room(&self) -> usize {
        self.buffer.len() - self.end
    }

    pub(crate) fn capacity(&self) -> usize {
        self.buffer.len()
    }
}

/// Buffers that wait for their next use.
#[derive(Debug)]
pub(crate) struct Pool {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    keep: usize,
    /// Only small buffers are given out.
    pub(crate) is_scarce: bool,
}

impl Pool {
    /// Returns an empty pool that keeps at most `bytes` of unused buffers of each size.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { small: Vec::new(), large: Vec::new(), keep: bytes, is_scarce: false }
    }

    /// Returns a buffer of 4 KiB if that holds `bytes` or memory is scarce, otherwise one of 64 KiB. What is
    /// in it is not defined.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Box<[u8]> {
        let is_small = bytes <= SMALL || self.is_scarce;
        let (list, size) = if is_small { (&mut self.small, SMALL) } else { (&mut self.large, LARGE) };
        list.pop().unwrap_or_else(|| vec![0; size].into_boxed_slice())
    }

    pub(crate) fn put(&mut self, buffer: Box<[u8]>) {
        let (list, size) = match buffer.len() {
            SMALL => (&mut self.small, SMALL),
            LARGE => (&mut self.large, LARGE),
            _ => return,
        };
        if list.len() < self.keep / size {
            list.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_filled_and_emptied_within_its_bounds() {
        let mut pool = Pool::new(LARGE);
        let mut chunk = Chunk::new(pool.buffer(1), 0, 0);
        assert_eq!(chunk.fill(&[7; 5000]), 4096);
        assert_eq!((chunk.len(), chunk.spare_mut().len(), chunk.fill(b"x")), (4096, 0, 0));
        chunk.advance(4095);
        assert_eq!(chunk.bytes(), [7]);
        chunk.advance(2);
        chunk.commit(1);
        assert!(chunk.is_empty());
        pool.put(chunk.into_buffer());
        assert_eq!((pool.small.len(), pool.buffer(1).len(), pool.small.len()), (1, 4096, 0));
    }

    #[test]
    fn a_pool_keeps_no_more_than_it_may() {
        let mut pool = Pool::new(LARGE);
        let buffers = [(); 2].map(|()| pool.buffer(LARGE));
        buffers.into_iter().for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.large.len(), 1);
    }
}
