//! What was read from the TUN and is not sealed yet: packets of sparse flows first, then those of all others in turn.
//!
//! A flow that fills the kernel's queue must not make all others wait behind it (a ping, a keystroke, a DNS query
//! beside a download), and the kernel's queue of a TUN is one for all. So it is read ahead, and a flow that has
//! little to send goes before those that have much, as in FQ-CoDel (RFC 8290, section 4.2). The order of a flow
//! stays as it is: while a packet of it waits among the bulk, all that follow wait behind it.
//!
//! Before: `weft_tun`'s batches. After: `outbound.rs` seals.

use std::collections::VecDeque;

use weft_tun::TunBatch;
use weft_tun::flow::FlowHasher;
use weft_tunnel::PacketMut;

use self::bulk::Bulk;

mod bulk;

/// Bytes that may be read ahead: about a millisecond at what one core encrypts, so that bulk leaves the kernel's
/// queue and shows what waits behind it.
pub(super) const READ_AHEAD: usize = 1024 * 1024;
/// Bytes of one flow that go first: two full packets of an ordinary MTU.
const SPARSE_BYTES: u32 = 3000;
/// Bytes that go first between two reads of the TUN, all flows together, so that bulk always gets its turn.
const SPARSE_TOTAL: usize = 64 * 1024;
/// Flows that are told apart. Two that share a bucket are treated as one: fairness suffers, order does not.
const BUCKETS: usize = 1024;

/// A packet that waits.
#[derive(Clone, Copy)]
struct Waiting {
    /// Number of its batch, counted from the first one ever, and its place there.
    batch: u64,
    packet: u32,
    bytes: u32,
    bucket: u16,
}

/// What is known of the flows that share a bucket.
#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Bytes among the sparse.
    sparse_bytes: u32,
}

/// Packets that were read ahead, and the batches that hold them.
pub(super) struct ReadAhead {
    hasher: FlowHasher,
    /// Each with the number of its packets that still wait; `None` once none does.
    batches: VecDeque<Option<(TunBatch, usize)>>,
    /// Number of the oldest batch.
    oldest: u64,
    /// The batch that gave out the last packet of its own: it goes home when the next packet is asked for.
    emptied: Option<u64>,
    sparse: VecDeque<Waiting>,
    bulk: Bulk,
    buckets: Box<[Bucket; BUCKETS]>,
    bytes: usize,
    /// What still may go first until the next read.
    sparse_budget: usize,
}

impl ReadAhead {
    pub(super) fn new() -> Self {
        Self {
            hasher: FlowHasher::random(),
            batches: VecDeque::new(),
            oldest: 0,
            emptied: None,
            sparse: VecDeque::new(),
            bulk: Bulk::new(),
            buckets: Box::new([Bucket::default(); BUCKETS]),
            bytes: 0,
            sparse_budget: SPARSE_TOTAL,
        }
    }

    /// Bytes that may be read now.
    pub(super) fn room(&self) -> usize {
        READ_AHEAD.saturating_sub(self.bytes)
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.sparse.is_empty() && self.bulk.is_empty()
    }

    /// Adds what one read gave.
    pub(super) fn extend(&mut self, batches: &mut VecDeque<TunBatch>) {
        self.retire();
        if self.sparse.is_empty() {
            self.sparse_budget = SPARSE_TOTAL;
        }
        for batch in batches.drain(..) {
            self.push(batch);
        }
    }

    fn push(&mut self, batch: TunBatch) {
        let number = self.oldest + self.batches.len() as u64;
        let mut count = 0;
        for (place, packet) in batch.remaining_with_places() {
            let hash = self.hasher.hash(packet).value;
            let waiting = Waiting {
                batch: number,
                packet: place,
                bytes: packet.len() as u32,
                bucket: (hash % BUCKETS as u64) as u16,
            };
            let bucket = &mut self.buckets[usize::from(waiting.bucket)];
            let is_sparse = !self.bulk.has(waiting.bucket)
                && bucket.sparse_bytes + waiting.bytes <= SPARSE_BYTES
                && packet.len() <= self.sparse_budget;
            if is_sparse {
                bucket.sparse_bytes += waiting.bytes;
                self.sparse_budget -= packet.len();
                self.sparse.push_back(waiting);
            } else {
                self.bulk.push(waiting);
            }
            self.bytes += packet.len();
            count += 1;
        }
        if count > 0 {
            self.batches.push_back(Some((batch, count)));
        }
    }

    /// The packet to seal next.
    pub(super) fn next(&mut self) -> Option<PacketMut<'_>> {
        self.retire();
        let waiting = if let Some(waiting) = self.sparse.pop_front() {
            self.buckets[usize::from(waiting.bucket)].sparse_bytes -= waiting.bytes;
            waiting
        } else {
            self.bulk.pop()?
        };
        self.bytes -= waiting.bytes as usize;
        let (batch, left) = self.batches.get_mut((waiting.batch - self.oldest) as usize)?.as_mut()?;
        *left -= 1;
        if *left == 0 {
            self.emptied = Some(waiting.batch);
        }
        batch.packet(waiting.packet)
    }

    /// Sends the batch home whose packets were all given out.
    fn retire(&mut self) {
        let Some(emptied) = self.emptied.take() else { return };
        self.batches[(emptied - self.oldest) as usize] = None;
        while let Some(None) = self.batches.front() {
            self.batches.pop_front();
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weft_tun::{Slab, SlabHome};
    use weft_tunnel::{Offload, TAILROOM};

    use super::*;

    /// A UDP packet of `flow` with a number, `len` bytes long.
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

    fn batch(packets: &[Vec<u8>]) -> TunBatch {
        let bytes = packets.iter().map(|packet| packet.len() + TAILROOM).sum();
        let mut slab = Slab::new(bytes);
        for packet in packets {
            slab.spare_mut()[..packet.len()].copy_from_slice(packet);
            assert!(slab.commit(0, packet.len(), Offload::None));
        }
        TunBatch::new(slab, 0, SlabHome::Nobody)
    }

    fn read(ahead: &mut ReadAhead, packets: &[Vec<u8>]) {
        ahead.extend(&mut VecDeque::from([batch(packets)]));
    }

    fn flow_and_number(packet: &PacketMut<'_>) -> (u16, u32) {
        let bytes = packet.bytes();
        (u16::from_be_bytes([bytes[20], bytes[21]]), u32::from_be_bytes(*bytes[28..].first_chunk().unwrap()))
    }

    fn drain(ahead: &mut ReadAhead, at_most: usize) -> Vec<(u16, u32)> {
        let mut out = Vec::new();
        while out.len() < at_most
            && let Some(packet) = ahead.next()
        {
            out.push(flow_and_number(&packet));
        }
        out
    }

    #[test]
    fn a_sparse_flow_goes_before_the_bulk_that_was_read_earlier() {
        let mut ahead = ReadAhead::new();
        let bulk: Vec<_> = (0..20).map(|number| packet(1, number, 60_000)).collect();
        read(&mut ahead, &bulk[..10]);
        assert_eq!(drain(&mut ahead, 1), [(1, 0)]);
        read(&mut ahead, &[packet(2, 0, 100), packet(1, 10, 100), packet(3, 0, 100)]);
        let order = drain(&mut ahead, usize::MAX);
        assert_eq!(order[..2], [(2, 0), (3, 0)]);
        // What follows of the bulk flow stays behind it, small as it is.
        assert_eq!(order[2..], (1..=10).map(|number| (1, number)).collect::<Vec<_>>());
        assert!(ahead.is_empty());
        assert_eq!(ahead.room(), READ_AHEAD);
    }

    #[test]
    fn a_flow_with_much_to_send_is_sparse_no_longer() {
        let mut ahead = ReadAhead::new();
        let many: Vec<_> = (0..10).map(|number| packet(1, number, 1400)).collect();
        read(&mut ahead, &many);
        read(&mut ahead, &[packet(2, 0, 100)]);
        let order = drain(&mut ahead, usize::MAX);
        assert_eq!(order[..4], [(1, 0), (1, 1), (2, 0), (1, 2)]);
    }

    #[test]
    fn what_is_left_of_a_flood_does_not_keep_another_flow_waiting() {
        let mut ahead = ReadAhead::new();
        read(&mut ahead, &(0..40).map(|number| packet(1, number, 22_000)).collect::<Vec<_>>());
        drain(&mut ahead, 2);
        read(&mut ahead, &(0..8).map(|number| packet(2, number, 22_000)).collect::<Vec<_>>());
        let order: Vec<_> = drain(&mut ahead, 20).into_iter().map(|(flow, _)| flow).collect();
        // The rest of a turn of 64 KiB, and then three packets each.
        assert_eq!(order, [1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_flow_of_small_packets_gets_as_many_bytes_as_one_of_large_ones() {
        let mut ahead = ReadAhead::new();
        read(&mut ahead, &(0..10).map(|number| packet(1, number, 60_000)).collect::<Vec<_>>());
        read(&mut ahead, &(0..600).map(|number| packet(2, number, 1000)).collect::<Vec<_>>());
        let large = drain(&mut ahead, 305).iter().filter(|(flow, _)| *flow == 1).count();
        // 300 small ones are as many bytes as five large ones; a turn may go over by a packet.
        assert!((5..=6).contains(&large), "{large}");
    }

    #[test]
    fn a_flood_of_sparse_flows_leaves_the_bulk_its_turn() {
        let mut ahead = ReadAhead::new();
        read(&mut ahead, &[packet(0, 0, 60_000)]);
        let flood = |round: u32| (1..200).map(|flow| packet(flow, round, 1000)).collect::<Vec<_>>();
        read(&mut ahead, &flood(0));
        read(&mut ahead, &flood(1));
        let order = drain(&mut ahead, usize::MAX);
        let turn = order.iter().position(|(flow, _)| *flow == 0).unwrap();
        assert!(turn <= SPARSE_TOTAL / 1000, "the bulk packet came after {turn} others");
    }

    #[test]
    fn slabs_go_home_once_their_packets_are_through_whichever_batch_is_first() {
        let (home, mut free) = tokio::sync::mpsc::unbounded_channel();
        let slab = |packet: Vec<u8>| {
            let mut slab = Slab::new(packet.len() + TAILROOM);
            slab.spare_mut()[..packet.len()].copy_from_slice(&packet);
            assert!(slab.commit(0, packet.len(), Offload::None));
            TunBatch::new(slab, 0, home.clone())
        };
        let mut ahead = ReadAhead::new();
        ahead.extend(&mut VecDeque::from([slab(packet(1, 0, 60_000)), slab(packet(2, 0, 100))]));
        assert_eq!(drain(&mut ahead, 1), [(2, 0)]);
        assert!(free.try_recv().is_err(), "its bytes may still be in use");
        assert_eq!(drain(&mut ahead, 1), [(1, 0)]);
        assert!(free.try_recv().is_ok());
        assert!(ahead.next().is_none());
        assert!(free.try_recv().is_ok());
    }

    proptest! {
        #[test]
        fn every_packet_comes_out_once_and_each_flow_in_order(
            reads in prop::collection::vec(
                (prop::collection::vec((0..6_u16, 40..4000_usize), 0..20), 0..30_usize),
                0..20,
            ),
        ) {
            let mut ahead = ReadAhead::new();
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
                read(&mut ahead, &packets);
                out.extend(drain(&mut ahead, drained));
            }
            out.extend(drain(&mut ahead, usize::MAX));
            for flow in 0..6 {
                let seen: Vec<_> = out.iter().filter(|(other, _)| *other == flow).map(|(_, n)| *n).collect();
                prop_assert_eq!(seen, (1..=numbers[usize::from(flow)]).collect::<Vec<_>>());
            }
            prop_assert_eq!(ahead.room(), READ_AHEAD);
            prop_assert!(ahead.buckets.iter().all(|bucket| bucket.sparse_bytes == 0));
        }
    }
}
