//! Batches of outbound packets, between the reader of a queue and the packet thread.

use std::sync::mpsc;

use weft_sched::flow::{FlowHash, FlowHasher};
use weft_sched::{PacketBatch, Remaining};
use weft_tunnel::{Offload, PacketMut, TAILROOM};

/// A buffer that a reader fills with packets, each behind its headroom.
#[derive(Debug)]
pub struct Slab {
    hasher: FlowHasher,
    buffer: Box<[u8]>,
    used: usize,
    bytes: usize,
    packets: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    len: u32,
    offload: Offload,
    flow: FlowHash,
}

impl Slab {
    /// Returns an empty slab of `bytes` bytes. `hasher` is that of the device: the flow of a packet is computed
    /// when the packet is committed, and no more after that.
    pub fn new(bytes: usize, hasher: FlowHasher) -> Self {
        Self { hasher, buffer: vec![0; bytes].into_boxed_slice(), used: 0, bytes: 0, packets: Vec::new() }
    }

    /// Returns a slab without room: a message to a reader thread, which waits for slabs.
    pub(crate) fn message() -> Self {
        Self::new(0, FlowHasher::random())
    }

    /// Returns the free bytes behind the packets that the slab already holds.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    /// Adds the packet of `len` bytes that was written at offset `headroom` of [`Self::spare_mut`]. Returns
    /// false and adds nothing if the packet and its tail do not fit.
    pub fn commit(&mut self, headroom: usize, len: usize, offload: Offload) -> bool {
        let start = self.used + headroom;
        let end = start + len + TAILROOM;
        if end > self.buffer.len() {
            return false;
        }
        let flow = self.hasher.hash(&self.buffer[start..start + len]);
        self.packets.push(Entry { start: start as u32, len: len as u32, offload, flow });
        self.used = end;
        self.bytes += len;
        true
    }

    /// Reports whether the slab holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets in the slab; a super-packet counts once.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Returns the bytes of the packets in the slab, without headroom and tails.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn clear(&mut self) {
        self.used = 0;
        self.bytes = 0;
        self.packets.clear();
    }
}

/// Where a slab returns when its batch is dropped: to a reader thread, or to a device without threads.
#[derive(Clone, Debug)]
pub enum SlabHome {
    /// To a reader thread, which waits for it.
    Thread(mpsc::Sender<Slab>),
    /// To a device without threads, with the number of the queue that the slab was filled from.
    Runtime(tokio::sync::mpsc::UnboundedSender<(u16, Slab)>),
    /// Nowhere: the slab was made for one batch only.
    Nobody,
}

impl From<mpsc::Sender<Slab>> for SlabHome {
    fn from(sender: mpsc::Sender<Slab>) -> Self {
        Self::Thread(sender)
    }
}

impl From<tokio::sync::mpsc::UnboundedSender<(u16, Slab)>> for SlabHome {
    fn from(sender: tokio::sync::mpsc::UnboundedSender<(u16, Slab)>) -> Self {
        Self::Runtime(sender)
    }
}

/// A slab of packets in reading order, on its way through the packet thread. When the batch is dropped, the
/// slab returns to its reader: a free slab is the reader's permit to read more.
#[derive(Debug)]
pub struct TunBatch {
    slab: Option<Slab>,
    next: usize,
    queue: u16,
    home: SlabHome,
}

impl TunBatch {
    /// Returns a batch of the packets in `slab`, which were read from queue `queue`. The slab returns through
    /// `home`.
    pub fn new(slab: Slab, queue: u16, home: impl Into<SlabHome>) -> Self {
        Self { slab: Some(slab), next: 0, queue, home: home.into() }
    }

    /// Returns the number of packets in the batch, returned by [`Self::next_packet`] or not; a super-packet
    /// counts once.
    pub fn packets(&self) -> usize {
        self.slab.as_ref().map_or(0, Slab::packets)
    }

    /// Returns the bytes of the packets in the batch, returned by [`Self::next_packet`] or not.
    pub fn bytes(&self) -> usize {
        self.slab.as_ref().map_or(0, Slab::bytes)
    }

    /// Returns the queue that the packets were read from.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the next packet, in reading order. Each packet is returned once.
    pub fn next_packet(&mut self) -> Option<PacketMut<'_>> {
        let place = self.next as u32;
        self.next += usize::from(!self.is_done());
        self.packet_at(place)
    }

    /// Returns the packet with this number, in reading order.
    fn packet_at(&mut self, number: u32) -> Option<PacketMut<'_>> {
        let slab = self.slab.as_mut()?;
        let entry = *slab.packets.get(number as usize)?;
        let (start, len) = (entry.start as usize, entry.len as usize);
        PacketMut::new(&mut slab.buffer[start..start + len + TAILROOM], len, entry.offload)
    }

    /// Returns every packet that [`Self::next_packet`] has not returned yet, without consuming it.
    pub fn remaining(&self) -> impl Iterator<Item = &[u8]> {
        let slab = self.slab.as_ref();
        let entries = slab.map_or(&[][..], |slab| &slab.packets[self.next..]);
        entries.iter().filter_map(move |entry| {
            let start = entry.start as usize;
            slab?.buffer.get(start..start + entry.len as usize)
        })
    }

    /// Removes packets of [`Self::remaining`] from the batch: those with `true` at their index in `wanted`.
    /// Returns for each its index, and a new slab with a copy of the packet.
    pub fn take_out(&mut self, wanted: &[bool]) -> Vec<(usize, Slab)> {
        let Some(slab) = self.slab.as_mut() else { return Vec::new() };
        let mut taken = Vec::new();
        let mut kept = slab.packets[..self.next].to_vec();
        for (place, entry) in slab.packets[self.next..].iter().enumerate() {
            if !wanted.get(place).copied().unwrap_or_default() {
                kept.push(*entry);
                continue;
            }
            let (start, len) = (entry.start as usize, entry.len as usize);
            let mut own = Slab::new(len + TAILROOM, slab.hasher);
            own.spare_mut()[..len].copy_from_slice(&slab.buffer[start..start + len]);
            own.commit(0, len, entry.offload);
            slab.bytes -= len;
            taken.push((place, own));
        }
        slab.packets = kept;
        taken
    }

    /// Reports whether [`Self::next_packet`] has returned every packet.
    pub fn is_done(&self) -> bool {
        self.slab.as_ref().is_none_or(|slab| self.next >= slab.packets.len())
    }
}

impl PacketBatch for TunBatch {
    fn remaining(&self) -> impl Iterator<Item = Remaining> {
        let entries = self.slab.as_ref().map_or(&[][..], |slab| &slab.packets[self.next..]);
        let numbered = (self.next as u32..).zip(entries);
        numbered.map(|(number, entry)| Remaining { number, bytes: entry.len, flow: entry.flow })
    }

    fn packet(&mut self, number: u32) -> Option<PacketMut<'_>> {
        self.packet_at(number)
    }
}

impl Drop for TunBatch {
    fn drop(&mut self) {
        if let Some(mut slab) = self.slab.take() {
            slab.clear();
            // Sending fails only if the reader has stopped. The slab is then freed.
            match &self.home {
                SlabHome::Thread(home) => drop(home.send(slab)),
                SlabHome::Runtime(home) => drop(home.send((self.queue, slab))),
                SlabHome::Nobody => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_without_room_for_its_tail_is_not_kept() {
        let mut slab = Slab::new(100, FlowHasher::random());
        assert!(!slab.commit(10, 91 - TAILROOM, Offload::None));
        assert!(slab.is_empty());
        assert!(slab.commit(10, 90 - TAILROOM, Offload::None));
        assert!(slab.spare_mut().is_empty());
        assert_eq!((slab.packets(), slab.bytes()), (1, 90 - TAILROOM));
    }

    /// Returns a UDP packet from this port.
    fn packet(port: u8) -> [u8; 28] {
        let mut packet = [0; 28];
        (packet[0], packet[3], packet[9], packet[21]) = (0x45, 28, 17, port);
        packet
    }

    #[test]
    fn a_packet_keeps_the_flow_of_its_content_also_when_it_is_taken_out() {
        let hasher = FlowHasher::random();
        let mut slab = Slab::new(200, hasher);
        for port in [1, 2] {
            slab.spare_mut()[10..38].copy_from_slice(&packet(port));
            assert!(slab.commit(10, 28, Offload::None));
        }
        let flows =
            |batch: &TunBatch| PacketBatch::remaining(batch).map(|packet| packet.flow).collect::<Vec<_>>();
        let mut batch = TunBatch::new(slab, 7, SlabHome::Nobody);
        assert_eq!(flows(&batch), [1, 2].map(|port| hasher.hash(&packet(port))));
        let (_, taken) = batch.take_out(&[true, false]).remove(0);
        assert_eq!(flows(&TunBatch::new(taken, 7, SlabHome::Nobody)), [hasher.hash(&packet(1))]);
        assert_eq!(flows(&batch), [hasher.hash(&packet(2))]);
    }

    #[test]
    fn a_dropped_batch_returns_its_slab_empty() {
        let (home, free) = mpsc::channel();
        let mut slab = Slab::new(200, FlowHasher::random());
        slab.spare_mut()[10..14].copy_from_slice(b"abcd");
        assert!(slab.commit(10, 4, Offload::None));
        let mut batch = TunBatch::new(slab, 7, home);
        assert_eq!(batch.remaining().collect::<Vec<_>>(), [b"abcd"]);
        assert_eq!(batch.next_packet().unwrap().bytes(), b"abcd");
        assert!(batch.is_done() && batch.next_packet().is_none());
        drop(batch);
        let mut slab = free.try_recv().unwrap();
        assert!(slab.is_empty());
        assert_eq!(slab.spare_mut().len(), 200);
    }
}
