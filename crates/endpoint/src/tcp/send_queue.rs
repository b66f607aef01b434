//! What the application put and the peer has not acknowledged.

use std::collections::VecDeque;

use super::sequence::FIRST;
use crate::chunk::{Chunk, Pool, SMALL};

/// Puts up to this size are copied behind the last one, if there is room.
const COPY: usize = 16 << 10;

/// Places that an empty queue keeps.
pub(super) const LITTLE: usize = 16;

/// The send side of a stream.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Chunks with the offset of their first byte.
    chunks: VecDeque<(u64, Chunk)>,
    /// Everything before it is acknowledged.
    start: u64,
    end: u64,
    /// Bytes of the buffers.
    held: u64,
}

impl SendQueue {
    pub(crate) fn new() -> Self {
        Self { chunks: VecDeque::new(), start: FIRST, end: FIRST, held: 0 }
    }

    /// Returns the offset behind the last byte that was put.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the bytes that were put and are not acknowledged.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the bytes of the buffers.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Adds bytes.
    pub(crate) fn push(&mut self, mut chunk: Chunk, pool: &mut Pool) {
        let len = chunk.len();
        if len == 0 {
            return pool.put(chunk.into_buffer());
        }
        match self.chunks.back_mut() {
            Some((_, back)) if len <= COPY && len <= back.room() => {
                back.fill(chunk.bytes());
                pool.put(chunk.into_buffer());
            }
            _ => {
                if len <= SMALL && chunk.capacity() > SMALL {
                    let mut small = Chunk::new(pool.buffer(len), 0, 0);
                    small.fill(chunk.bytes());
                    pool.put(std::mem::replace(&mut chunk, small).into_buffer());
                }
                self.held += chunk.capacity() as u64;
                self.chunks.push_back((self.end, chunk));
            }
        }
        self.end += len as u64;
    }

    /// Copies the bytes from `at` on to `out`, which ends before the end of the queue.
    pub(crate) fn copy(&self, mut at: u64, mut out: &mut [u8]) {
        let first = self.chunks.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        for (start, chunk) in self.chunks.range(first..) {
            let bytes = chunk.bytes().get((at - start) as usize..).unwrap_or_default();
            let count = bytes.len().min(out.len());
            let (now, rest) = out.split_at_mut(count);
            now.copy_from_slice(&bytes[..count]);
            out = rest;
            at += count as u64;
            if out.is_empty() {
                return;
            }
        }
        debug_assert!(out.is_empty(), "bytes that nobody put");
    }

    /// Forgets everything before `to`.
    pub(crate) fn release(&mut self, to: u64, pool: &mut Pool) {
        self.start = self.start.max(to.min(self.end));
        while let Some((first, chunk)) = self.chunks.front()
            && first + chunk.len() as u64 <= self.start
            && let Some((_, chunk)) = self.chunks.pop_front()
        {
            self.held -= chunk.capacity() as u64;
            pool.put(chunk.into_buffer());
        }
        if self.chunks.is_empty() {
            self.chunks.shrink_to(LITTLE);
        }
    }

    /// Gives every buffer back.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        self.release(self.end, pool);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_until_they_are_acknowledged() {
        let (mut queue, mut pool) = (SendQueue::new(), Pool::new(1 << 20));
        let all: Vec<u8> = (0..300_000_u32).map(|n| (n * 31 + n / 251) as u8).collect();
        let sizes = [1, 100, 4096, 65_536, 5000, 3, 0, 16_000, 65_536, 60_000];
        let mut put = 0;
        for size in sizes.iter().cycle() {
            let size = (*size).min(all.len() - put);
            let mut chunk = Chunk::new(pool.buffer(crate::chunk::LARGE), 0, 0);
            put += chunk.fill(&all[put..put + size]);
            queue.push(chunk, &mut pool);
            if put == all.len() {
                break;
            }
        }
        assert_eq!(queue.len(), all.len() as u64);
        for at in (0..all.len()).step_by(1234) {
            let mut out = vec![0; 70_000.min(all.len() - at)];
            queue.release(FIRST + at as u64, &mut pool);
            queue.copy(FIRST + at as u64, &mut out);
            assert_eq!(out, all[at..at + out.len()]);
        }
        queue.clear(&mut pool);
        assert!(queue.len() == 0 && queue.chunks.capacity() <= LITTLE, "{}", queue.chunks.capacity());
    }

    #[test]
    fn small_puts_share_a_buffer() {
        let (mut queue, mut pool) = (SendQueue::new(), Pool::new(1 << 20));
        for _ in 0..40 {
            let mut chunk = Chunk::new(pool.buffer(crate::chunk::LARGE), 0, 0);
            chunk.fill(&[1; 100]);
            queue.push(chunk, &mut pool);
        }
        assert_eq!((queue.chunks.len(), queue.chunks[0].1.capacity()), (1, 4096));
    }
}
