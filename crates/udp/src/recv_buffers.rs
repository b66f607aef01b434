//! Buffers of received datagrams, and the position of the event loop in them.

use std::collections::VecDeque;
use std::fmt;

use weft_tunnel::RecvMeta;

use super::{DATAGRAM_COST, cost_of};

/// Received bytes that are not handled yet.
#[derive(Debug)]
pub struct Received<'a> {
    /// Metadata of the whole buffer: `len` and `stride` are those of the buffer, not of `bytes`.
    pub meta: RecvMeta,
    /// [`RecvBuffers::next`] returns datagrams of `meta.stride` bytes each, of which the last may be shorter;
    /// [`RecvBuffers::next_datagram`] returns a single datagram.
    pub bytes: &'a mut [u8],
    /// Whether the last datagram of `bytes` was cut off because the buffer was too small (MSG_TRUNC).
    pub truncated: bool,
}

impl Received<'_> {
    /// Returns the bytes without a datagram that was cut off.
    pub fn whole(&mut self) -> &mut [u8] {
        let last = self.bytes.len().checked_sub(1).filter(|_| self.truncated);
        let cut = last.map_or(0, |last| last % self.meta.stride + 1);
        let whole = self.bytes.len() - cut;
        &mut self.bytes[..whole]
    }
}

/// Buffers for receive calls, with a cursor that can stop and resume after any datagram.
///
/// A socket has one queue for all sources. Sparse sources go first, so that a source that fills the socket
/// does not delay the others. The messages of a source stay in order: while a message of a source waits among
/// the bulk, all its later messages wait behind it.
///
/// To fill the buffers, write to the first of [`Self::free_buffers`], then call [`Self::push`] for each.
pub struct RecvBuffers {
    bytes: Box<[u8]>,
    metas: [Option<(RecvMeta, bool)>; Self::COUNT],
    /// Filled buffers that the cursor has not reached: those of sparse sources, and the bulk.
    sparse: VecDeque<usize>,
    bulk: VecDeque<usize>,
    /// The buffer that the cursor is in, and the number of its bytes that were returned already.
    current: Option<usize>,
    offset: usize,
    /// Whether all messages come out in the order of arrival, whatever their source.
    is_fifo: bool,
}

impl RecvBuffers {
    /// Number of buffers. Measured on 2 cores, one call receives 1.4 messages on average.
    pub const COUNT: usize = 16;
    /// Bytes of each buffer: no datagram is longer, and the kernel's GRO joins no more than this.
    pub const BUFFER_BYTES: usize = 65_536;
    /// Cost up to which the waiting messages of a source are sparse: two full datagrams of an ordinary MTU,
    /// or half a dozen short datagrams.
    const SPARSE_COST: usize = 2 * (1500 + DATAGRAM_COST);

    /// Returns empty buffers: 1 MiB, of which only the used part takes memory.
    pub fn new() -> Self {
        Self::with_buffer_bytes(Self::BUFFER_BYTES)
    }

    /// Returns empty buffers for handshake messages, each for as many initiations as the kernel's GRO joins.
    /// The handshake socket keeps GRO on for the sake of the other sockets: a socket with GRO off would
    /// switch it off for a part of all sources, because the kernel asks any socket of a group before the
    /// program of the group chooses a socket.
    pub fn for_handshakes() -> Self {
        Self { is_fifo: true, ..Self::with_buffer_bytes(64 * 148) }
    }

    pub(super) fn with_buffer_bytes(buffer_bytes: usize) -> Self {
        Self {
            bytes: vec![0; buffer_bytes * Self::COUNT].into_boxed_slice(),
            metas: [None; Self::COUNT],
            sparse: VecDeque::with_capacity(Self::COUNT),
            bulk: VecDeque::with_capacity(Self::COUNT),
            current: None,
            offset: 0,
            is_fifo: false,
        }
    }

    /// Discards everything received.
    pub fn clear(&mut self) {
        self.metas = [None; Self::COUNT];
        self.sparse.clear();
        self.bulk.clear();
        (self.current, self.offset) = (None, 0);
    }

    /// Returns the free buffers, in the order in which [`Self::push`] marks them.
    pub fn free_buffers(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let buffer_bytes = self.buffer_bytes();
        let buffers = self.bytes.chunks_exact_mut(buffer_bytes).zip(&self.metas);
        buffers.filter(|(_, meta)| meta.is_none()).map(|(buffer, _)| buffer)
    }

    /// Marks the first free buffer as filled with `meta.len` bytes. `truncated` means that the last datagram
    /// was cut off. Does nothing if no buffer is free.
    pub fn push(&mut self, mut meta: RecvMeta, truncated: bool) {
        meta.len = meta.len.min(self.buffer_bytes());
        meta.stride = meta.stride.max(1);
        let Some(free) = self.metas.iter().position(Option::is_none) else { return };
        if self.is_fifo {
            self.sparse.push_back(free);
            self.metas[free] = Some((meta, truncated));
            return;
        }
        let cost = |meta: &RecvMeta| cost_of(meta.len, meta.len.div_ceil(meta.stride).max(1));
        let waiting = |queue: &VecDeque<usize>| -> Option<usize> {
            let of_source = queue.iter().filter_map(|place| self.metas[*place].as_ref());
            of_source
                .filter(|(other, _)| other.source == meta.source)
                .map(|(other, _)| cost(other))
                .reduce(|a, b| a + b)
        };
        let is_sparse = waiting(&self.bulk).is_none()
            && waiting(&self.sparse).unwrap_or(0) + cost(&meta) <= Self::SPARSE_COST;
        if is_sparse { &mut self.sparse } else { &mut self.bulk }.push_back(free);
        self.metas[free] = Some((meta, truncated));
    }

    /// Copies a datagram that was received elsewhere to a free buffer. Returns false if no buffer is free or
    /// the datagram does not fit.
    pub fn push_copy(&mut self, meta: &RecvMeta, datagram: &[u8]) -> bool {
        let buffer = self.free_buffers().next().and_then(|buffer| buffer.get_mut(..datagram.len()));
        let Some(buffer) = buffer else { return false };
        buffer.copy_from_slice(datagram);
        self.push(RecvMeta { len: datagram.len(), stride: datagram.len(), ..*meta }, false);
        true
    }

    /// Returns the number of buffers with something that was not returned yet.
    pub fn filled(&self) -> usize {
        self.sparse.len() + self.bulk.len() + usize::from(self.current.is_some())
    }

    /// Reports whether a buffer is free.
    pub fn has_room(&self) -> bool {
        self.filled() < Self::COUNT
    }

    /// Reports whether everything was returned.
    pub fn is_done(&self) -> bool {
        self.filled() == 0
    }

    /// Returns the rest of the current buffer, or the next buffer: one datagram, or several that the kernel's
    /// GRO joined.
    #[expect(clippy::should_implement_trait, reason = "the items borrow from the buffers")]
    pub fn next(&mut self) -> Option<Received<'_>> {
        self.advance(usize::MAX)
    }

    /// Returns the next single datagram. The slice of an empty datagram is empty.
    pub fn next_datagram(&mut self) -> Option<Received<'_>> {
        self.advance(1)
    }

    fn advance(&mut self, datagrams: usize) -> Option<Received<'_>> {
        let current = match self.current {
            Some(current) => current,
            None => self.sparse.pop_front().or_else(|| self.bulk.pop_front())?,
        };
        let (meta, cut) = self.metas[current]?;
        let start = current * self.buffer_bytes();
        let from = self.offset;
        let to = from.saturating_add(meta.stride.saturating_mul(datagrams)).min(meta.len);
        if to == meta.len {
            (self.current, self.offset) = (None, 0);
            self.metas[current] = None;
        } else {
            (self.current, self.offset) = (Some(current), to);
        }
        Some(Received {
            meta,
            bytes: &mut self.bytes[start + from..start + to],
            truncated: cut && to == meta.len,
        })
    }

    fn buffer_bytes(&self) -> usize {
        self.bytes.len() / Self::COUNT
    }
}

impl Default for RecvBuffers {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RecvBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuffers")
            .field("filled", &self.filled())
            .field("current", &self.current)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use weft_tunnel::Ecn;

    use super::*;

    fn filled(contents: &[(&[u8], usize)]) -> RecvBuffers {
        let mut buffers = RecvBuffers::with_buffer_bytes(8);
        for &(bytes, stride) in contents {
            buffers.free_buffers().next().unwrap()[..bytes.len()].copy_from_slice(bytes);
            let source = SocketAddr::from(([192, 0, 2, 1], 1));
            let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: bytes.len(), stride };
            buffers.push(meta, false);
        }
        buffers
    }

    #[test]
    fn the_cursor_resumes_in_the_middle_of_a_buffer() {
        let mut buffers = filled(&[(b"aabbc", 2), (b"dd", 2)]);
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"aa");
        assert_eq!(buffers.next().unwrap().bytes, b"bbc");
        assert!(!buffers.is_done());
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"dd");
        assert!(buffers.is_done());
        assert!(buffers.next().is_none());
    }

    #[test]
    fn an_empty_datagram_is_one_datagram() {
        let mut buffers = filled(&[(b"", 0), (b"d", 1)]);
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"");
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"d");
        assert!(buffers.next_datagram().is_none());
    }

    fn push(buffers: &mut RecvBuffers, port: u16, tag: u8, len: usize) {
        buffers.free_buffers().next().unwrap()[..len].fill(tag);
        let source = SocketAddr::from(([192, 0, 2, 1], port));
        buffers.push(RecvMeta { source, local: None, ecn: Ecn::NotEct, len, stride: len }, false);
    }

    fn drain(buffers: &mut RecvBuffers, at_most: usize) -> Vec<(u16, u8)> {
        let mut out = Vec::new();
        while out.len() < at_most
            && let Some(received) = buffers.next()
        {
            assert!(received.bytes.iter().all(|byte| *byte == received.bytes[0]));
            out.push((received.meta.source.port(), received.bytes[0]));
        }
        out
    }

    #[test]
    fn a_source_with_little_goes_before_the_bulk_that_came_earlier() {
        let mut buffers = RecvBuffers::new();
        for tag in 0..10 {
            push(&mut buffers, 1, tag, 60_000);
        }
        assert_eq!(drain(&mut buffers, 2), [(1, 0), (1, 1)]);
        push(&mut buffers, 2, 0, 100);
        push(&mut buffers, 1, 10, 100);
        push(&mut buffers, 3, 0, 100);
        let order = drain(&mut buffers, usize::MAX);
        assert_eq!(order[..2], [(2, 0), (3, 0)]);
        // Later datagrams of the bulk source stay behind it, however short they are.
        assert_eq!(order[2..], (2..=10).map(|tag| (1, tag)).collect::<Vec<_>>());
        assert!(buffers.is_done());
    }

    #[test]
    fn a_buffer_is_free_again_once_it_was_handed_out() {
        let mut buffers = RecvBuffers::with_buffer_bytes(8);
        for tag in 0..RecvBuffers::COUNT as u8 {
            push(&mut buffers, tag.into(), tag, 8);
        }
        assert!(!buffers.has_room() && buffers.free_buffers().next().is_none());
        assert_eq!(drain(&mut buffers, 3), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(buffers.free_buffers().count(), 3);
        buffers.clear();
        assert!(buffers.is_done());
        assert_eq!(buffers.free_buffers().count(), RecvBuffers::COUNT);
    }

    proptest! {
        #[test]
        fn everything_comes_out_once_and_what_a_source_sent_in_order(
            steps in prop::collection::vec((0..4_u16, 1..4000_usize, 0..3_usize), 0..200),
        ) {
            let mut buffers = RecvBuffers::with_buffer_bytes(4000);
            let mut numbers = [0; 4];
            let mut out = Vec::new();
            for (port, len, drained) in steps {
                if !buffers.has_room() {
                    out.extend(drain(&mut buffers, 5));
                }
                push(&mut buffers, port, numbers[usize::from(port)], len);
                numbers[usize::from(port)] = numbers[usize::from(port)].wrapping_add(1);
                out.extend(drain(&mut buffers, drained));
            }
            out.extend(drain(&mut buffers, usize::MAX));
            for port in 0..4 {
                let seen: Vec<u8> = out.iter().filter(|(other, _)| *other == port).map(|(_, tag)| *tag).collect();
                prop_assert_eq!(seen, (0..numbers[usize::from(port)]).collect::<Vec<_>>());
            }
        }
    }
}
