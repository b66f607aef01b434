//! What one receive call brought, and how far the event loop has got in it.

use std::fmt;

use weft_tunnel::RecvMeta;

/// Received bytes that are not handled yet.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// What the socket says about the whole buffer; `len` and `stride` are the buffer's.
    pub meta: RecvMeta,
    /// From [`RecvBuffers::next`] datagrams of `meta.stride` bytes each, the last of which may be shorter; from
    /// [`RecvBuffers::next_datagram`] a single one.
    pub bytes: &'a [u8],
    /// The last datagram of `bytes` was cut off because the buffer was too small (MSG_TRUNC).
    pub truncated: bool,
}

impl<'a> Received<'a> {
    /// The bytes without a datagram that was cut off.
    pub fn whole(&self) -> &'a [u8] {
        if !self.truncated {
            return self.bytes;
        }
        let cut = self.bytes.len().checked_sub(1).map_or(0, |last| last % self.meta.stride + 1);
        &self.bytes[..self.bytes.len() - cut]
    }
}

/// Buffers for one receive call, and a cursor that stops and resumes anywhere in what was received.
///
/// To fill it: [`Self::clear`], write to the first [`Self::free_buffers`], then [`Self::push`] for each.
pub struct RecvBuffers {
    bytes: Box<[u8]>,
    metas: [Option<(RecvMeta, bool)>; Self::COUNT],
    filled: usize,
    /// The buffer that the cursor is in, and the bytes of it that were handed out.
    current: usize,
    offset: usize,
}

impl RecvBuffers {
    /// How many buffers there are. Measured on 2 cores, one call brings 1.4 messages on average.
    pub const COUNT: usize = 16;
    /// Bytes of each: no datagram is longer, and the kernel's GRO joins no more than this.
    pub const BUFFER_BYTES: usize = 65_536;

    /// Empty buffers: 1 MiB, of which only what is used takes memory.
    pub fn new() -> Self {
        Self::with_buffer_bytes(Self::BUFFER_BYTES)
    }

    pub(super) fn with_buffer_bytes(buffer_bytes: usize) -> Self {
        Self {
            bytes: vec![0; buffer_bytes * Self::COUNT].into_boxed_slice(),
            metas: [None; Self::COUNT],
            filled: 0,
            current: 0,
            offset: 0,
        }
    }

    /// Forgets what is there.
    pub fn clear(&mut self) {
        (self.filled, self.current, self.offset) = (0, 0, 0);
    }

    /// The buffers that nothing was pushed for yet, in order.
    pub fn free_buffers(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        let buffer_bytes = self.buffer_bytes();
        self.bytes.chunks_exact_mut(buffer_bytes).skip(self.filled)
    }

    /// Marks the first free buffer as filled with `meta.len` bytes, of which the last datagram was cut off when
    /// `truncated`. Without a free buffer nothing happens.
    pub fn push(&mut self, mut meta: RecvMeta, truncated: bool) {
        meta.len = meta.len.min(self.buffer_bytes());
        meta.stride = meta.stride.max(1);
        if let Some(slot) = self.metas.get_mut(self.filled) {
            *slot = Some((meta, truncated));
            self.filled += 1;
        }
    }

    /// Buffers that were filled.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Whether the cursor is through.
    pub fn is_done(&self) -> bool {
        self.current == self.filled
    }

    /// The rest of the current buffer: one datagram, or several that the kernel's GRO joined.
    #[expect(clippy::should_implement_trait, reason = "the items borrow from the buffers")]
    pub fn next(&mut self) -> Option<Received<'_>> {
        self.advance(usize::MAX)
    }

    /// The next single datagram. Empty ones have an empty slice.
    pub fn next_datagram(&mut self) -> Option<Received<'_>> {
        self.advance(1)
    }

    fn advance(&mut self, datagrams: usize) -> Option<Received<'_>> {
        if self.is_done() {
            return None;
        }
        let (meta, cut) = self.metas[self.current]?;
        let start = self.current * self.buffer_bytes();
        let from = self.offset;
        let to = from.saturating_add(meta.stride.saturating_mul(datagrams)).min(meta.len);
        if to == meta.len {
            (self.current, self.offset) = (self.current + 1, 0);
        } else {
            self.offset = to;
        }
        Some(Received {
            meta,
            bytes: &self.bytes[start + from..start + to],
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
            .field("filled", &self.filled)
            .field("current", &self.current)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

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

    #[test]
    fn filling_again_replaces_what_was_there() {
        let mut buffers = filled(&[(b"aabbc", 2)]);
        buffers.next_datagram();
        buffers.clear();
        assert!(buffers.is_done());
        assert_eq!(buffers.free_buffers().len(), RecvBuffers::COUNT);
    }
}
