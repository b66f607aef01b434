//! Buffers of received datagrams, a queue for each source, and the position of the event loop in them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;
use std::{fmt, mem};

use weft_sched::{Next, SourceQueues};
use weft_tunnel::RecvMeta;

use super::cost_of;

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
    /// Whether the source is recorded already ([`RecvBuffers::record_authentic`]).
    pub is_authentic: bool,
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

/// Received messages that wait to be opened, with a cursor that can stop and resume after any datagram.
///
/// The sockets are emptied into these buffers, where each source has its own queue ([`SourceQueues`]): a
/// source that sends more than can be opened delays and loses only its own messages. The messages of a source
/// stay in order.
///
/// To fill the buffers, write to the first of [`Self::free_buffers`], then call [`Self::push`].
pub struct RecvBuffers {
    /// Large buffers, one after the other, each for whatever one receive call can return.
    large: Box<[u8]>,
    large_bytes: usize,
    /// Small buffers, one after the other, for short messages that have to wait.
    small: Box<[u8]>,
    /// The messages in the large buffers, then those in the small ones.
    messages: Box<[Option<Message>]>,
    /// Number of free large buffers, and the free small ones.
    free_large: usize,
    free_small: Vec<usize>,
    queues: SourceQueues<usize>,
    /// The buffer that the cursor is in.
    current: Option<usize>,
    /// Takes the place of the queues where all messages come out in the order of arrival, whatever their
    /// source.
    fifo: Option<VecDeque<usize>>,
    now: Instant,
    /// Bytes received since [`Self::begin_turn`].
    bytes: usize,
    /// Datagrams dropped since [`Self::take_dropped`].
    dropped: u64,
}

/// A message in a buffer.
#[derive(Clone, Copy, Debug)]
struct Message {
    meta: RecvMeta,
    truncated: bool,
    is_authentic: bool,
    /// Bytes that were returned already, or dropped.
    offset: usize,
}

impl RecvBuffers {
    /// Maximum number of messages that one call receives.
    pub const COUNT: usize = 16;
    /// Bytes of each large buffer: no datagram is longer, and the kernel's GRO joins no more than this.
    pub const BUFFER_BYTES: usize = 65_536;
    /// Most large buffers: 24 MiB, all that TCP's slow starts in four connections send with Linux's largest
    /// receive windows (`tcp_rmem`, 6 MiB), before their queue counts as standing.
    const LARGE: usize = 384;
    /// Large buffers for each MiB of a socket's receive buffer.
    const LARGE_PER_MIB: usize = 55;
    /// Number of small buffers.
    const SMALL: usize = 1024;
    /// Bytes of each small buffer: a datagram of an ordinary MTU.
    const SMALL_BYTES: usize = 2048;
    /// Datagrams shorter than this are not dropped because their queue waits long. They are pings,
    /// acknowledgements and requests, and no sender of them would slow down.
    const SHED_BYTES: usize = 512;

    /// Returns empty buffers beside sockets with receive buffers of `socket_bytes`: 3.4 times as much,
    /// between 4 and 24 MiB, and 2 MiB of small ones. Only the used part takes memory, and only a source that
    /// sends faster than it can be served uses more than a turn needs.
    pub fn new(socket_bytes: usize) -> Self {
        let large = socket_bytes.saturating_mul(Self::LARGE_PER_MIB) >> 20;
        Self::with(Self::BUFFER_BYTES, large.clamp(4 * Self::COUNT, Self::LARGE), Self::SMALL, false)
    }

    /// Returns empty buffers for handshake messages, each for as many initiations as the kernel's GRO joins.
    /// The sockets of handshake messages keep GRO on for the sake of the other sockets: a socket with GRO off
    /// would switch it off for a part of all sources, because the kernel asks any socket of a group before
    /// the program of the group chooses a socket.
    pub fn for_handshakes() -> Self {
        Self::with(64 * 148, Self::COUNT, 0, true)
    }

    pub(super) fn with(large_bytes: usize, large: usize, small: usize, is_fifo: bool) -> Self {
        Self {
            large: vec![0; large_bytes * large].into_boxed_slice(),
            large_bytes,
            small: vec![0; Self::SMALL_BYTES * small].into_boxed_slice(),
            messages: vec![None; large + small].into_boxed_slice(),
            free_large: large,
            free_small: (large..large + small).rev().collect(),
            queues: SourceQueues::new(),
            current: None,
            fifo: is_fifo.then(VecDeque::new),
            now: Instant::now(),
            bytes: 0,
            dropped: 0,
        }
    }

    /// Begins a turn at `now`, the time of arrival of the messages received in it.
    pub fn begin_turn(&mut self, now: Instant) {
        (self.now, self.bytes) = (now, 0);
    }

    /// Lets the waits of messages count from this turn on: until now, none could be opened.
    pub fn resume(&mut self) {
        self.queues.resume(self.now);
    }

    /// Returns the bytes received in this turn.
    pub fn received_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the free buffers, in the order in which [`Self::push`] takes them.
    pub fn free_buffers(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let buffers = self.large.chunks_exact_mut(self.large_bytes).zip(&self.messages);
        buffers.filter(|(_, message)| message.is_none()).map(|(buffer, _)| buffer)
    }

    /// Takes the messages in the first of the free buffers: the metadata of each, and whether its last
    /// datagram was cut off. Ignores what exceeds the free buffers.
    pub fn push(&mut self, received: impl IntoIterator<Item = (RecvMeta, bool)>) {
        let mut place = 0;
        for (meta, truncated) in received {
            let free = (place..self.large_count()).find(|place| self.messages[*place].is_none());
            let Some(free) = free else { return };
            self.push_at(free, meta, truncated);
            place = free + 1;
        }
    }

    fn push_at(&mut self, mut place: usize, mut meta: RecvMeta, truncated: bool) {
        meta.len = meta.len.min(self.large_bytes);
        meta.stride = meta.stride.max(1);
        self.bytes += meta.len;
        // Without a queue nothing is copied.
        let is_short = meta.len <= Self::SMALL_BYTES && self.free_large + Self::COUNT < self.large_count();
        let small = if is_short { self.free_small.pop() } else { None };
        if let Some(small) = small {
            let from = place * self.large_bytes;
            let to = (small - self.large_count()) * Self::SMALL_BYTES;
            self.small[to..to + meta.len].copy_from_slice(&self.large[from..from + meta.len]);
            place = small;
        } else {
            self.free_large -= 1;
        }
        let cost = cost_of(meta.len, meta.len.div_ceil(meta.stride).max(1));
        let is_authentic = if let Some(fifo) = &mut self.fifo {
            fifo.push_back(place);
            false
        } else {
            let may_be_shed = meta.stride >= Self::SHED_BYTES;
            self.queues.push(meta.source, place, cost, may_be_shed, self.now)
        };
        self.messages[place] = Some(Message { meta, truncated, is_authentic, offset: 0 });
    }

    /// Copies a datagram that was received elsewhere to a free buffer. Returns false if no buffer is free or
    /// the datagram does not fit.
    pub fn push_copy(&mut self, meta: &RecvMeta, datagram: &[u8]) -> bool {
        let buffer = self.free_buffers().next().and_then(|buffer| buffer.get_mut(..datagram.len()));
        let Some(buffer) = buffer else { return false };
        buffer.copy_from_slice(datagram);
        self.push([(RecvMeta { len: datagram.len(), stride: datagram.len(), ..*meta }, false)]);
        true
    }

    /// Makes room for a receive call: if the buffers are full, the oldest messages of the source with the
    /// longest queue are dropped. Returns false if there is no room.
    pub fn make_room(&mut self) -> bool {
        while self.free_large < Self::COUNT
            && let Some(place) = self.queues.pop_longest()
        {
            if let Some(Message { meta, offset, .. }) = self.messages[place] {
                self.dropped += (meta.len - offset).div_ceil(meta.stride).max(1) as u64;
            }
            self.release(place);
        }
        self.free_large >= Self::COUNT
    }

    /// Returns the number of datagrams dropped since the last call: those that arrived faster than they could
    /// be opened.
    pub fn take_dropped(&mut self) -> u64 {
        mem::take(&mut self.dropped)
    }

    /// Records that a source sent authentic datagrams. Only such a source has a queue apart from others.
    pub fn record_authentic(&mut self, source: SocketAddr) {
        self.queues.record_authentic(source);
    }

    /// Returns the number of buffers that a receive call may fill.
    pub fn room(&self) -> usize {
        self.free_large.min(Self::COUNT)
    }

    /// Reports whether everything was returned.
    pub fn is_done(&self) -> bool {
        let is_empty = self.fifo.as_ref().map_or_else(|| self.queues.is_empty(), VecDeque::is_empty);
        self.current.is_none() && is_empty
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
        let place = match self.current {
            Some(current) => current,
            None => self.next_message()?,
        };
        let Message { meta, truncated, is_authentic, offset } = self.messages[place]?;
        let end = offset.saturating_add(meta.stride.saturating_mul(datagrams)).min(meta.len);
        if end == meta.len {
            self.current = None;
            self.release(place);
        } else {
            self.current = Some(place);
            self.messages[place] = Some(Message { meta, truncated, is_authentic, offset: end });
        }
        let bytes = match place.checked_sub(self.large_count()) {
            None => &mut self.large[place * self.large_bytes..][..self.large_bytes],
            Some(place) => &mut self.small[place * Self::SMALL_BYTES..][..Self::SMALL_BYTES],
        };
        let truncated = truncated && end == meta.len;
        Some(Received { meta, bytes: &mut bytes[offset..end], truncated, is_authentic })
    }

    /// Returns the place of the message to open next, less the datagrams that are shed.
    fn next_message(&mut self) -> Option<usize> {
        if let Some(fifo) = &mut self.fifo {
            return fifo.pop_front();
        }
        loop {
            let Next { item: place, sheds_first } = self.queues.pop(self.now)?;
            if !sheds_first {
                return Some(place);
            }
            self.dropped += 1;
            let message = self.messages[place].as_mut()?;
            message.offset += message.meta.stride;
            if message.offset < message.meta.len {
                return Some(place);
            }
            self.release(place);
        }
    }

    fn release(&mut self, place: usize) {
        self.messages[place] = None;
        if place < self.large_count() {
            self.free_large += 1;
        } else {
            self.free_small.push(place);
        }
    }

    fn large_count(&self) -> usize {
        self.large.len() / self.large_bytes
    }
}

impl Default for RecvBuffers {
    fn default() -> Self {
        Self::new(super::MAX_RECEIVE_BUFFER_BYTES as usize)
    }
}

impl fmt::Debug for RecvBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuffers")
            .field("waiting", &self.queues.len())
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weft_tunnel::Ecn;

    use super::*;

    fn push(buffers: &mut RecvBuffers, port: u16, bytes: &[u8], stride: usize) {
        buffers.free_buffers().next().unwrap()[..bytes.len()].copy_from_slice(bytes);
        let source = SocketAddr::from(([192, 0, 2, 1], port));
        let meta = RecvMeta { source, local: None, ecn: Ecn::NotEct, len: bytes.len(), stride };
        buffers.push([(meta, false)]);
    }

    fn filled(contents: &[(&[u8], usize)]) -> RecvBuffers {
        let mut buffers = RecvBuffers::new(2 << 20);
        contents.iter().for_each(|(bytes, stride)| push(&mut buffers, 1, bytes, *stride));
        buffers
    }

    /// Takes messages out. Returns the port and the first byte of each, and checks that all its bytes are
    /// alike.
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
    fn what_may_wait_follows_the_receive_buffer() {
        let bytes = |socket_bytes| RecvBuffers::new(socket_bytes).large_count() * RecvBuffers::BUFFER_BYTES;
        assert_eq!(
            [0, 256 << 10, 2 << 20, 7 << 20, usize::MAX].map(bytes).map(|bytes| bytes >> 20),
            [4, 4, 6, 24, 24]
        );
    }

    #[test]
    fn an_empty_datagram_is_one_datagram() {
        let mut buffers = filled(&[(b"", 0), (b"d", 1)]);
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"");
        assert_eq!(buffers.next_datagram().unwrap().bytes, b"d");
        assert!(buffers.next_datagram().is_none());
    }

    /// Floods the buffers beside a message of another source. Returns the number of datagrams that were
    /// dropped, of messages of the other source that were kept, and the messages of the flood.
    fn flood_beside_another() -> (u64, usize, Vec<u8>) {
        let mut buffers = RecvBuffers::new(2 << 20);
        buffers.record_authentic(([192, 0, 2, 1], 1).into());
        buffers.record_authentic(([192, 0, 2, 1], 2).into());
        push(&mut buffers, 2, &[200; 600], 600);
        for count in 0..250 {
            assert!(buffers.make_room());
            push(&mut buffers, 1, &[count; 60_000], 1000);
        }
        let dropped = buffers.take_dropped();
        let order = drain(&mut buffers, usize::MAX);
        let others = order.iter().filter(|(port, _)| *port == 2).count();
        (dropped, others, order.iter().filter(|(port, _)| *port == 1).map(|(_, tag)| *tag).collect())
    }

    #[test]
    fn with_several_sources_the_longest_loses_its_oldest_and_each_datagram_is_counted() {
        // One large buffer has the message of the other source.
        let kept = 110 - RecvBuffers::COUNT as u8;
        let expected = (60 * u64::from(250 - kept), 1, (250 - kept..250).collect());
        // Sources are hashed with a random key: in one of 256 cases these two share a queue.
        let found: Vec<_> = (0..3).map(|_| flood_beside_another()).collect();
        assert!(found.contains(&expected), "{found:?}");
    }

    #[test]
    fn thousands_of_short_messages_wait_without_loss_in_the_place_of_a_few_large_ones() {
        let mut buffers = RecvBuffers::new(2 << 20);
        for number in 0..RecvBuffers::SMALL as u16 {
            assert!(buffers.make_room());
            push(&mut buffers, 1 + number % 7, &[(number / 7) as u8; 1452], 1452);
        }
        assert_eq!(buffers.take_dropped(), 0);
        let order = drain(&mut buffers, usize::MAX);
        assert_eq!(order.len(), RecvBuffers::SMALL);
        for port in 1..=7 {
            let tags: Vec<u8> = order.iter().filter(|(of, _)| *of == port).map(|(_, tag)| *tag).collect();
            assert_eq!(tags, (0..tags.len()).map(|tag| tag as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_long_wait_costs_a_message_its_first_datagram_alone() {
        let (mut buffers, start) = (RecvBuffers::new(2 << 20), Instant::now());
        buffers.record_authentic(([192, 0, 2, 1], 1).into());
        let (mut received, mut dropped) = (0, 0);
        for ms in 0..300 {
            buffers.begin_turn(start + Duration::from_millis(ms));
            push(&mut buffers, 1, &[1; 3000], 1000);
            if ms >= 5 {
                received += buffers.next().unwrap().bytes.len();
                dropped += buffers.take_dropped() as usize;
            }
        }
        assert!((2..10).contains(&dropped), "{dropped}");
        assert_eq!(received + 1000 * dropped, 295 * 3000);
    }

    #[test]
    fn handshake_messages_come_out_in_the_order_of_arrival() {
        let mut buffers = RecvBuffers::for_handshakes();
        for tag in 0..RecvBuffers::COUNT as u8 {
            push(&mut buffers, (tag % 3).into(), &[tag; 148], 148);
        }
        assert!(buffers.free_buffers().next().is_none());
        assert_eq!(drain(&mut buffers, 3), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!((buffers.free_buffers().count(), buffers.room()), (3, 3));
        assert_eq!(drain(&mut buffers, 99).last(), Some(&(0, 15)));
    }

    proptest! {
        #[test]
        fn everything_comes_out_once_and_what_a_source_sent_in_order(
            steps in prop::collection::vec((0..4_u16, 1..4000_usize, 0..3_usize), 0..400),
        ) {
            let mut buffers = RecvBuffers::new(2 << 20);
            let mut numbers = [0; 4];
            let mut out = Vec::new();
            for (port, len, drained) in steps {
                if buffers.room() < RecvBuffers::COUNT {
                    out.extend(drain(&mut buffers, 5));
                }
                let number = &mut numbers[usize::from(port)];
                push(&mut buffers, port, &vec![*number; len], len);
                *number = number.wrapping_add(1);
                out.extend(drain(&mut buffers, drained));
                if len % 50 == 0 {
                    buffers.record_authentic(([192, 0, 2, 1], port).into());
                }
            }
            out.extend(drain(&mut buffers, usize::MAX));
            for port in 0..4 {
                let seen: Vec<u8> = out.iter().filter(|(other, _)| *other == port).map(|(_, tag)| *tag).collect();
                prop_assert_eq!(seen.len() as u8, numbers[usize::from(port)]);
                prop_assert!(seen.iter().enumerate().all(|(number, tag)| number as u8 == *tag));
            }
        }
    }
}
