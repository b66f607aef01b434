//! Datagrams for the UDP socket. [`TransmitQueue`] groups data messages into GSO batches in the buffer that
//! they are encrypted into.
//!
//! Before: `outbound.rs` seals into a reserved slot. After: the event loop sends one batch with one call.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use crate::peer_id::PeerId;

/// UDP payload bytes that one GSO send may carry over IPv4 (udp(7): 65,535 less IPv4 and UDP header).
pub const MAX_BATCH_BYTES: usize = 65_507;
/// Segments that one GSO send may carry (UDP_MAX_SEGMENTS, Linux before 6.9).
pub const MAX_BATCH_SEGMENTS: usize = 64;
/// Bytes of the longest control message, the handshake initiation (WireGuard whitepaper, section 5.4.2).
pub const MAX_CONTROL_MESSAGE: usize = 148;

/// Explicit Congestion Notification field of an IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable, codepoint ECT(1).
    Ect1 = 1,
    /// ECN-capable, codepoint ECT(0).
    Ect0 = 2,
    /// Congestion Experienced.
    Ce = 3,
}

impl Ecn {
    /// Reads the field from the two low bits of an IPv4 type-of-service or IPv6 traffic-class byte.
    pub fn from_bits(tos: u8) -> Self {
        match tos & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// Destination, source and ECN field of a datagram. All datagrams of a batch have the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The peer that the datagram is for.
    pub peer: PeerId,
    /// The endpoint of the peer.
    pub destination: SocketAddr,
    /// The local address to send from; `None` lets the routing table choose.
    pub source: Option<IpAddr>,
    /// The ECN field of the outer header.
    pub ecn: Ecn,
}

/// One or more datagrams for one send: all have `segment_size` bytes but the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// Destination of the datagrams.
    pub destination: SocketAddr,
    /// The local address to send from; `None` lets the routing table choose.
    pub source: Option<IpAddr>,
    /// The ECN field of the outer header.
    pub ecn: Ecn,
    /// Bytes of each datagram in `contents` but the last. Never 0.
    pub segment_size: usize,
    /// The datagrams, one after the other without gaps.
    pub contents: &'a [u8],
}

impl Transmit<'_> {
    /// Returns the number of datagrams in `contents`.
    pub fn segments(&self) -> usize {
        self.contents.len().div_ceil(self.segment_size)
    }
}

/// A GSO batch and its buffer.
#[derive(Debug)]
pub struct Batch {
    path: Path,
    buffer: Box<[u8]>,
    segment_size: usize,
    segments: usize,
    len: usize,
    sent: usize,
    sealed: bool,
}

impl Batch {
    /// Returns the path of all datagrams in the batch.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Returns the datagrams that were not sent yet.
    pub fn unsent(&self) -> Transmit<'_> {
        Transmit {
            destination: self.path.destination,
            source: self.path.source,
            ecn: self.path.ecn,
            segment_size: self.segment_size,
            contents: &self.buffer[self.sent..self.len],
        }
    }

    /// Marks the next `bytes` bytes as sent, which have to be whole datagrams. Returns true when all of the
    /// batch is sent.
    pub fn advance(&mut self, bytes: usize) -> bool {
        self.sent = (self.sent + bytes).min(self.len);
        self.sent == self.len
    }

    /// Lets the routing table choose the source address of the datagrams that were not sent yet.
    pub fn forget_source(&mut self) {
        self.path.source = None;
    }

    fn takes(&self, path: &Path, len: usize) -> bool {
        !self.sealed
            && self.sent == 0
            && len <= self.segment_size
            && self.segments < MAX_BATCH_SEGMENTS
            && self.len + len <= MAX_BATCH_BYTES
            && self.path == *path
    }
}

/// Data messages in the order in which they were encrypted, grouped into GSO batches.
///
/// Only the newest batch grows, and a shorter datagram ends it. So no datagram overtakes another.
#[derive(Debug)]
pub struct TransmitQueue {
    batches: VecDeque<Batch>,
    free: Vec<Box<[u8]>>,
    capacity: usize,
}

impl TransmitQueue {
    /// Creates a queue that asks for back-pressure once `capacity` batches wait.
    ///
    /// A super-packet of tiny segments may exceed the capacity by the batches of that super-packet, never by
    /// more.
    pub fn new(capacity: usize) -> Self {
        Self { batches: VecDeque::with_capacity(capacity + 2), free: Vec::with_capacity(capacity), capacity }
    }

    /// Reports whether a packet of any size may be encrypted into the queue.
    pub fn has_room_for_super_packet(&self) -> bool {
        // A full super-packet at MTU 1420 takes two batches.
        self.batches.len() + 2 <= self.capacity
    }

    /// Reports whether no batch waits.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Returns the number of batches that wait.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    /// Reserves a place for a datagram of exactly `len` bytes to `path`, at the end of the newest batch if
    /// that can take it, else in a new batch. The datagram counts only once the slot is committed.
    pub(crate) fn reserve(&mut self, path: Path, len: usize) -> Slot<'_> {
        if !self.batches.back().is_some_and(|batch| batch.takes(&path, len)) {
            let buffer = self
                .free
                .pop()
                .unwrap_or_else(|| vec![0; MAX_BATCH_BYTES + MAX_CONTROL_MESSAGE].into_boxed_slice());
            let batch =
                Batch { path, buffer, segment_size: len, segments: 0, len: 0, sent: 0, sealed: false };
            self.batches.push_back(batch);
        }
        Slot { queue: self, len }
    }

    /// Ends the newest batch: the next datagram starts another.
    pub(crate) fn seal(&mut self) {
        if let Some(batch) = self.batches.back_mut() {
            batch.sealed = true;
        }
    }

    /// Removes and returns the oldest batch.
    pub fn pop(&mut self) -> Option<Batch> {
        self.batches.pop_front()
    }

    /// Puts a batch that was not sent completely back to the front of the queue. It does not grow any more.
    pub fn unpop(&mut self, mut batch: Batch) {
        batch.sealed = true;
        self.batches.push_front(batch);
    }

    /// Removes and returns the batches to a peer, in order.
    pub(crate) fn take_peer(&mut self, peer: PeerId) -> Vec<Batch> {
        let (taken, left): (Vec<_>, Vec<_>) =
            self.batches.drain(..).partition(|batch| batch.path.peer == peer);
        self.batches.extend(left);
        taken
    }

    /// Appends batches that another queue had, to the peer that is `peer` here. They do not grow any more.
    pub(crate) fn adopt(&mut self, peer: PeerId, batches: Vec<Batch>) {
        for mut batch in batches {
            batch.path.peer = peer;
            batch.sealed = true;
            self.batches.push_back(batch);
        }
    }

    /// Keeps the buffer of a finished batch for reuse.
    pub fn recycle(&mut self, batch: Batch) {
        if self.free.len() < self.capacity {
            self.free.push(batch.buffer);
        }
    }
}

/// A reserved place in the newest batch. Dropping it without [`Slot::commit`] rolls the reservation back.
#[derive(Debug)]
pub(crate) struct Slot<'q> {
    queue: &'q mut TransmitQueue,
    len: usize,
}

impl Slot<'_> {
    /// Returns the buffer for the datagram, with slack behind it.
    pub(crate) fn buffer_mut(&mut self) -> &mut [u8] {
        match self.queue.batches.back_mut() {
            Some(batch) => &mut batch.buffer[batch.len..],
            None => &mut [],
        }
    }

    /// Adds the datagram to the batch.
    pub(crate) fn commit(self) {
        if let Some(batch) = self.queue.batches.back_mut() {
            batch.len += self.len;
            batch.segments += 1;
            batch.sealed |= self.len < batch.segment_size;
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.queue.batches.back().is_some_and(|batch| batch.len == 0)
            && let Some(batch) = self.queue.batches.pop_back()
        {
            self.queue.recycle(batch);
        }
    }
}

/// Metadata of a received buffer, which holds one datagram, or several that the kernel's GRO joined.
#[derive(Clone, Copy, Debug)]
pub struct RecvMeta {
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// The local address that the datagrams were sent to, which is the source of the answer.
    pub local: Option<IpAddr>,
    /// The ECN field of the outer header.
    pub ecn: Ecn,
    /// Bytes received.
    pub len: usize,
    /// Bytes of each datagram but the last, which may be shorter. Never 0.
    pub stride: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(port: u16) -> Path {
        Path {
            peer: PeerId::for_test(0),
            destination: SocketAddr::from(([192, 0, 2, 1], port)),
            source: None,
            ecn: Ecn::NotEct,
        }
    }

    fn put(queue: &mut TransmitQueue, path: Path, len: usize, tag: u8) {
        let mut slot = queue.reserve(path, len);
        slot.buffer_mut()[..len].fill(tag);
        slot.commit();
    }

    #[test]
    fn what_waits_is_counted_and_may_lose_its_source() {
        let mut queue = TransmitQueue::new(4);
        assert!(queue.is_empty());
        let path = Path { source: Some(IpAddr::from([192, 0, 2, 2])), ..path(1) };
        for (port, waiting) in [(1, 1), (1, 1), (2, 2)] {
            let destination = SocketAddr::from(([192, 0, 2, 1], port));
            put(&mut queue, Path { destination, ..path }, 100, 0);
            assert_eq!((queue.is_empty(), queue.len()), (false, waiting));
        }
        let mut batch = queue.pop().unwrap();
        batch.forget_source();
        assert_eq!((batch.path().source, batch.unsent().source), (None, None));
        assert_eq!(queue.pop().unwrap().unsent().source, path.source, "the others keep it");
    }

    fn sizes(queue: &mut TransmitQueue) -> Vec<(usize, usize)> {
        std::iter::from_fn(|| queue.pop())
            .map(|batch| (batch.unsent().segments(), batch.unsent().contents.len()))
            .collect()
    }

    #[test]
    fn equal_datagrams_share_a_batch_and_a_shorter_one_ends_it() {
        let mut queue = TransmitQueue::new(8);
        for len in [100, 100, 60, 60, 100] {
            put(&mut queue, path(1), len, 0);
        }
        assert_eq!(sizes(&mut queue), [(3, 260), (1, 60), (1, 100)]);
    }

    #[test]
    fn another_destination_ends_a_batch_for_good() {
        let mut queue = TransmitQueue::new(8);
        for (port, tag) in [(1, 1), (2, 2), (1, 3)] {
            put(&mut queue, path(port), 100, tag);
        }
        let order: Vec<u8> =
            std::iter::from_fn(|| queue.pop()).map(|batch| batch.unsent().contents[0]).collect();
        assert_eq!(order, [1, 2, 3]);
    }

    #[test]
    fn a_batch_ends_at_64_segments_and_at_what_udp_carries() {
        let mut queue = TransmitQueue::new(8);
        for _ in 0..65 {
            put(&mut queue, path(1), 32, 0);
        }
        assert_eq!(sizes(&mut queue), [(64, 2048), (1, 32)]);
        for _ in 0..46 {
            put(&mut queue, path(1), 1452, 0);
        }
        assert_eq!(sizes(&mut queue), [(45, 65_340), (1, 1452)]);
    }

    #[test]
    fn a_reservation_that_is_not_committed_leaves_nothing() {
        let mut queue = TransmitQueue::new(8);
        drop(queue.reserve(path(1), 100));
        assert!(queue.is_empty());
        put(&mut queue, path(1), 100, 0);
        drop(queue.reserve(path(1), 100));
        assert_eq!(sizes(&mut queue), [(1, 100)]);
    }

    #[test]
    fn a_batch_that_was_sent_in_part_goes_on_where_it_was() {
        let mut queue = TransmitQueue::new(8);
        for tag in 0..3 {
            put(&mut queue, path(1), 100, tag);
        }
        let mut batch = queue.pop().unwrap();
        assert!(!batch.advance(100));
        queue.unpop(batch);
        put(&mut queue, path(1), 100, 3);
        let mut batch = queue.pop().unwrap();
        assert_eq!(batch.unsent().contents[0], 1);
        assert_eq!(batch.unsent().segments(), 2);
        assert!(batch.advance(200));
        assert_eq!(sizes(&mut queue), [(1, 100)]);
    }

    #[test]
    fn there_is_room_while_two_more_batches_fit_and_buffers_stay_for_a_full_queue_alone() {
        let mut queue = TransmitQueue::new(5);
        for (port, has_room) in (1..).zip([true, true, true, false, false, false]) {
            put(&mut queue, path(port), 100, 0);
            assert_eq!(queue.has_room_for_super_packet(), has_room, "{port} batches");
        }
        while let Some(batch) = queue.pop() {
            queue.recycle(batch);
        }
        assert!(queue.has_room_for_super_packet());
        assert_eq!(queue.free.len(), 5);
    }

    proptest! {
        #[test]
        fn any_datagrams_come_out_in_order_and_in_batches_that_one_send_carries(
            datagrams in prop::collection::vec(
                (0..3_u16, prop_oneof![Just(1452_usize), 32..2000_usize, 32..65_000_usize], 0..20_u8),
                0..300,
            ),
        ) {
            let mut queue = TransmitQueue::new(8);
            for (number, (port, len, what)) in datagrams.iter().enumerate() {
                match what {
                    0 => queue.seal(),
                    1 => drop(queue.reserve(path(9), 100)),
                    _ => {}
                }
                let mut slot = queue.reserve(path(*port), *len);
                slot.buffer_mut()[..4].copy_from_slice(&(number as u32).to_be_bytes());
                slot.commit();
            }
            let mut came_out = Vec::new();
            while let Some(batch) = queue.pop() {
                let unsent = batch.unsent();
                prop_assert!(unsent.contents.len() <= MAX_BATCH_BYTES);
                prop_assert!((1..=MAX_BATCH_SEGMENTS).contains(&unsent.segments()));
                for datagram in unsent.contents.chunks(unsent.segment_size) {
                    let number = u32::from_be_bytes(*datagram.first_chunk().unwrap());
                    came_out.push((number, batch.path().destination.port(), datagram.len()));
                }
                queue.recycle(batch);
            }
            let went_in: Vec<_> = datagrams.iter().enumerate().map(|(i, (port, len, _))| (i as u32, *port, *len)).collect();
            prop_assert_eq!(came_out, went_in);
        }
    }
}
