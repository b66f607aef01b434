//! Packets that wait to be sealed: sparse flows first, then bulk flows in deficit round robin, as in FQ-CoDel
//! (RFC 8290, section 4.2).
//!
//! A TUN queue of the kernel is one FIFO for all flows in it. weft reads it ahead into this queue, so that a
//! ping, a keystroke or a DNS query does not wait behind a download. The order within a flow does not change:
//! while a packet of a flow waits among the bulk, all later packets of the flow wait behind it.

use std::collections::VecDeque;

use weft_tunnel::PacketMut;

use self::bulk::BulkFlows;
use crate::flow::FlowHash;

mod bulk;

/// Bytes that may wait: what one core encrypts in about a millisecond. Bulk packets are read out of the
/// kernel's queue, so that weft sees the packets behind them.
const CAPACITY: usize = 1024 * 1024;
/// Bytes that a flow may have waiting among the sparse: two full packets of an ordinary MTU.
const SPARSE_BYTES: u32 = 3000;
/// Sparse bytes of all flows together that are accepted until a read of the TUN finds no sparse packet
/// waiting, so that bulk always proceeds.
const SPARSE_TOTAL: usize = 64 * 1024;
/// Number of buckets. Two flows that share a bucket are treated as one flow, which costs fairness but not
/// order.
const BUCKETS: usize = 1024;

/// A packet of a [`PacketBatch`] that is still to be sealed.
#[derive(Clone, Copy, Debug)]
pub struct Remaining {
    /// Its number for [`PacketBatch::packet`].
    pub number: u32,
    /// Its length, in bytes.
    pub bytes: u32,
    /// Its flow.
    pub flow: FlowHash,
}

/// A batch of packets, in the order in which they were read.
pub trait PacketBatch {
    /// Returns the packets that are still to be sealed.
    fn remaining(&self) -> impl Iterator<Item = Remaining>;

    /// Returns the packet with this number. Each packet may be requested once, because sealing may consume
    /// it.
    fn packet(&mut self, number: u32) -> Option<PacketMut<'_>>;
}

#[derive(Clone, Copy)]
struct Waiting {
    /// Number of the batch, counted from the first batch of the queue.
    batch: u64,
    /// Number of the packet in the batch.
    packet: u32,
    bytes: u32,
    bucket: u16,
}

/// The state of the flows that share a bucket.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Bytes that wait in `FlowQueue::sparse`.
    sparse_bytes: u32,
}

/// Packets that wait, and the batches that hold them. A batch is dropped when its last packet has been used.
pub struct FlowQueue<B> {
    /// Each batch with the number of its packets that still wait; `None` once the batch was dropped.
    batches: VecDeque<Option<(B, usize)>>,
    /// Number of the oldest batch.
    oldest: u64,
    /// The batch with its last packet in use. The next call of `next` or `extend` drops it.
    emptied: Option<u64>,
    sparse: VecDeque<Waiting>,
    bulk: BulkFlows,
    buckets: Box<[Bucket; BUCKETS]>,
    bytes: usize,
    /// Bytes that are left of `SPARSE_TOTAL`.
    sparse_budget: usize,
}

impl<B: PacketBatch> FlowQueue<B> {
    /// Returns an empty queue.
    pub fn new() -> Self {
        Self {
            batches: VecDeque::new(),
            oldest: 0,
            emptied: None,
            sparse: VecDeque::new(),
            bulk: BulkFlows::new(),
            buckets: Box::new([Bucket::default(); BUCKETS]),
            bytes: 0,
            sparse_budget: SPARSE_TOTAL,
        }
    }

    /// Returns the number of bytes that may be added now.
    pub fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.bytes)
    }

    /// Returns the number of bytes that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reports whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty()
    }

    /// Adds the batches of one read.
    pub fn extend(&mut self, batches: &mut VecDeque<B>) {
        self.retire();
        if self.sparse.is_empty() {
            self.sparse_budget = SPARSE_TOTAL;
        }
        for batch in batches.drain(..) {
            self.push(batch);
        }
    }

    fn push(&mut self, batch: B) {
        let batch_number = self.oldest + self.batches.len() as u64;
        let mut count = 0;
        for Remaining { number, bytes, flow } in batch.remaining() {
            let bucket = (flow.value % BUCKETS as u64) as u16;
            let waiting = Waiting { batch: batch_number, packet: number, bytes, bucket };
            let len = bytes as usize;
            let bucket = &mut self.buckets[usize::from(waiting.bucket)];
            let is_sparse = !self.bulk.contains(waiting.bucket)
                && bucket.sparse_bytes + waiting.bytes <= SPARSE_BYTES
                && len <= self.sparse_budget;
            if is_sparse {
                bucket.sparse_bytes += waiting.bytes;
                self.sparse_budget -= len;
                self.sparse.push_back(waiting);
            } else {
                self.bulk.push(waiting);
            }
            self.bytes += len;
            count += 1;
        }
        if count > 0 {
            self.batches.push_back(Some((batch, count)));
        }
    }

    /// Returns the packet to seal next; `None` if no packet waits.
    #[expect(clippy::should_implement_trait, reason = "the items borrow from the queue")]
    pub fn next(&mut self) -> Option<PacketMut<'_>> {
        self.retire();
        let waiting = if let Some(waiting) = self.sparse.pop_front() {
            self.buckets[usize::from(waiting.bucket)].sparse_bytes -= waiting.bytes;
            waiting
        } else {
            self.bulk.pop()?
        };
        self.bytes -= waiting.bytes as usize;
        let (batch, remaining) = self.batches.get_mut((waiting.batch - self.oldest) as usize)?.as_mut()?;
        *remaining -= 1;
        if *remaining == 0 {
            self.emptied = Some(waiting.batch);
        }
        batch.packet(waiting.packet)
    }

    /// Drops the batch if all its packets were used.
    fn retire(&mut self) {
        let Some(emptied) = self.emptied.take() else { return };
        self.batches[(emptied - self.oldest) as usize] = None;
        while let Some(None) = self.batches.front() {
            self.batches.pop_front();
            self.oldest += 1;
        }
    }
}

impl<B: PacketBatch> Default for FlowQueue<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> std::fmt::Debug for FlowQueue<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowQueue").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;
    use weft_tunnel::{Offload, TAILROOM};

    use super::*;

    /// Packets, and a counter of the batches that were dropped.
    struct Batch {
        packets: Vec<(FlowHash, Vec<u8>)>,
        dropped: Rc<Cell<usize>>,
    }

    impl PacketBatch for Batch {
        fn remaining(&self) -> impl Iterator<Item = Remaining> {
            (0..).zip(&self.packets).map(|(number, (flow, packet))| {
                let bytes = (packet.len() - TAILROOM) as u32;
                Remaining { number, bytes, flow: *flow }
            })
        }

        fn packet(&mut self, number: u32) -> Option<PacketMut<'_>> {
            let (_, packet) = self.packets.get_mut(number as usize)?;
            let len = packet.len() - TAILROOM;
            PacketMut::new(packet, len, Offload::None)
        }
    }

    impl Drop for Batch {
        fn drop(&mut self) {
            self.dropped.set(self.dropped.get() + 1);
        }
    }

    /// Returns a UDP packet of `flow` with a number. It is `len` bytes long.
    fn packet(flow: u16, number: u32, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len.max(32)];
        let total = packet.len() as u16;
        packet[..4].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8]);
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[20..22].copy_from_slice(&flow.to_be_bytes());
        packet[28..32].copy_from_slice(&number.to_be_bytes());
        packet
    }

    fn batch(packets: &[Vec<u8>], dropped: &Rc<Cell<usize>>) -> Batch {
        let packet = |packet: &Vec<u8>| {
            let flow = FlowHash { value: flow_and_number(packet).0.into(), has_ports: true };
            (flow, [&packet[..], &[0; TAILROOM]].concat())
        };
        Batch { packets: packets.iter().map(packet).collect(), dropped: dropped.clone() }
    }

    fn read(queue: &mut FlowQueue<Batch>, packets: &[Vec<u8>]) {
        queue.extend(&mut VecDeque::from([batch(packets, &Rc::default())]));
    }

    fn flow_and_number(bytes: &[u8]) -> (u16, u32) {
        (u16::from_be_bytes([bytes[20], bytes[21]]), u32::from_be_bytes(*bytes[28..].first_chunk().unwrap()))
    }

    fn drain(queue: &mut FlowQueue<Batch>, at_most: usize) -> Vec<(u16, u32)> {
        let mut out = Vec::new();
        while out.len() < at_most
            && let Some(packet) = queue.next()
        {
            out.push(flow_and_number(packet.bytes()));
        }
        out
    }

    #[test]
    fn what_waits_is_counted_among_sparse_and_bulk() {
        let mut queue = FlowQueue::new();
        assert_eq!((queue.bytes(), queue.is_empty()), (0, true));
        read(&mut queue, &[packet(1, 0, 100), packet(1, 1, 4000)]);
        assert_eq!((queue.bytes(), queue.is_empty(), queue.room()), (4100, false, CAPACITY - 4100));
        assert_eq!(drain(&mut queue, 1), [(1, 0)]);
        assert_eq!((queue.bytes(), queue.is_empty()), (4000, false));
        assert_eq!(drain(&mut queue, 1), [(1, 1)]);
        assert_eq!((queue.bytes(), queue.is_empty()), (0, true));
    }

    #[test]
    fn a_sparse_flow_goes_before_the_bulk_that_was_read_earlier() {
        let mut queue = FlowQueue::new();
        let bulk: Vec<_> = (0..20).map(|number| packet(1, number, 60_000)).collect();
        read(&mut queue, &bulk[..10]);
        assert_eq!(drain(&mut queue, 1), [(1, 0)]);
        read(&mut queue, &[packet(2, 0, 100), packet(1, 10, 100), packet(3, 0, 100)]);
        let order = drain(&mut queue, usize::MAX);
        assert_eq!(order[..2], [(2, 0), (3, 0)]);
        // Later packets of the bulk flow stay behind it, however short they are.
        assert_eq!(order[2..], (1..=10).map(|number| (1, number)).collect::<Vec<_>>());
        assert!(queue.is_empty());
        assert_eq!(queue.room(), CAPACITY);
    }

    #[test]
    fn a_flow_with_much_to_send_is_sparse_no_longer() {
        let mut queue = FlowQueue::new();
        let many: Vec<_> = (0..10).map(|number| packet(1, number, 1400)).collect();
        read(&mut queue, &many);
        read(&mut queue, &[packet(2, 0, 100)]);
        let order = drain(&mut queue, usize::MAX);
        assert_eq!(order[..4], [(1, 0), (1, 1), (2, 0), (1, 2)]);
    }

    #[test]
    fn what_is_left_of_a_flood_does_not_keep_another_flow_waiting() {
        let mut queue = FlowQueue::new();
        read(&mut queue, &(0..40).map(|number| packet(1, number, 22_000)).collect::<Vec<_>>());
        drain(&mut queue, 2);
        read(&mut queue, &(0..8).map(|number| packet(2, number, 22_000)).collect::<Vec<_>>());
        let order: Vec<_> = drain(&mut queue, 20).into_iter().map(|(flow, _)| flow).collect();
        // The rest of a quantum of 64 KiB, then three packets each.
        assert_eq!(order, [1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_flow_of_small_packets_gets_as_many_bytes_as_one_of_large_ones() {
        let mut queue = FlowQueue::new();
        read(&mut queue, &(0..10).map(|number| packet(1, number, 60_000)).collect::<Vec<_>>());
        read(&mut queue, &(0..600).map(|number| packet(2, number, 1000)).collect::<Vec<_>>());
        let large = drain(&mut queue, 305).iter().filter(|(flow, _)| *flow == 1).count();
        // 300 small packets are as many bytes as five large packets; a quantum may be exceeded by a packet.
        assert!((5..=6).contains(&large), "{large}");
    }

    #[test]
    fn a_flood_of_sparse_flows_leaves_the_bulk_its_turn() {
        let mut queue = FlowQueue::new();
        read(&mut queue, &[packet(0, 0, 60_000)]);
        let flood = |round: u32| (1..200).map(|flow| packet(flow, round, 1000)).collect::<Vec<_>>();
        read(&mut queue, &flood(0));
        read(&mut queue, &flood(1));
        let order = drain(&mut queue, usize::MAX);
        let turn = order.iter().position(|(flow, _)| *flow == 0).unwrap();
        assert!(turn <= SPARSE_TOTAL / 1000, "the bulk packet came after {turn} others");
    }

    #[test]
    fn a_batch_is_dropped_once_its_last_packet_was_used_whichever_batch_is_first() {
        let dropped = Rc::default();
        let mut queue = FlowQueue::new();
        let batches = [packet(1, 0, 60_000), packet(2, 0, 100)].map(|packet| batch(&[packet], &dropped));
        queue.extend(&mut VecDeque::from(batches));
        assert_eq!(drain(&mut queue, 1), [(2, 0)]);
        assert_eq!(dropped.get(), 0, "the packet may still be in use");
        assert_eq!(drain(&mut queue, 1), [(1, 0)]);
        assert_eq!(dropped.get(), 1);
        assert!(queue.next().is_none());
        assert_eq!(dropped.get(), 2);
    }

    proptest! {
        #[test]
        fn every_packet_comes_out_once_and_each_flow_in_order(
            reads in prop::collection::vec(
                (prop::collection::vec((0..6_u16, 40..4000_usize), 0..20), 0..30_usize),
                0..20,
            ),
        ) {
            let mut queue = FlowQueue::new();
            let mut numbers = [0; 6];
            let mut out = Vec::new();
            for (packets, drained) in reads {
                let packets: Vec<_> = packets
                    .into_iter()
                    .map(|(flow, len)| {
                        numbers[usize::from(flow)] += 1;
                        packet(flow, numbers[usize::from(flow)], len)
                    })
                    .collect();
                read(&mut queue, &packets);
                out.extend(drain(&mut queue, drained));
            }
            out.extend(drain(&mut queue, usize::MAX));
            for flow in 0..6 {
                let seen: Vec<_> = out.iter().filter(|(other, _)| *other == flow).map(|(_, n)| *n).collect();
                prop_assert_eq!(seen, (1..=numbers[usize::from(flow)]).collect::<Vec<_>>());
            }
            prop_assert_eq!(queue.room(), CAPACITY);
            prop_assert!(queue.buckets.iter().all(|bucket| bucket.sparse_bytes == 0));
        }
    }
}
