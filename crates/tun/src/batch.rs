//! Batches of outbound packets, between the reader of a queue and the packet thread.

use std::ptr::NonNull;
use std::sync::{Arc, mpsc};

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
    /// Returns an empty slab of `bytes` bytes. `hasher` is that of the device: the flow of a packet is
    /// computed when the packet is committed, and no more after that.
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
    None,
}

impl SlabHome {
    fn send(&self, queue: u16, slab: Slab) {
        // Sending fails only if the reader has stopped. The slab is then freed.
        match self {
            Self::Thread(home) => drop(home.send(slab)),
            Self::Runtime(home) => drop(home.send((queue, slab))),
            Self::None => {}
        }
    }
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

/// A slab whose packets belong to several batches, which several threads may hold. The last batch that is
/// dropped sends it home.
#[derive(Debug)]
struct SharedSlab {
    buffer: NonNull<[u8]>,
    hasher: FlowHasher,
    /// The list of the slab, empty: it keeps its capacity.
    list: Vec<Entry>,
    queue: u16,
    home: SlabHome,
}

// SAFETY: `buffer` is a box of bytes that the slab owns. Threads reach it through `Part` alone, and each part
// only the bytes of its own packets.
unsafe impl Send for SharedSlab {}
// SAFETY: as above.
unsafe impl Sync for SharedSlab {}

impl Drop for SharedSlab {
    fn drop(&mut self) {
        // SAFETY: `buffer` is from `Box::into_raw`, in `Part::all_of`, and is turned back only here. No
        // reference into it is left: those that a part gives out borrow the part, and every part has been
        // dropped.
        let buffer = unsafe { Box::from_raw(self.buffer.as_ptr()) };
        let packets = std::mem::take(&mut self.list);
        self.home.send(self.queue, Slab { hasher: self.hasher, buffer, used: 0, bytes: 0, packets });
    }
}

/// Packets of a slab of which other batches have the others.
#[derive(Debug)]
struct Part {
    slab: Arc<SharedSlab>,
    /// The packets of this part: no other part has any of them.
    packets: Vec<Entry>,
    bytes: usize,
}

impl Part {
    /// Returns one part with these packets for each list.
    ///
    /// # Safety
    /// The entries are those of the slab, and each of them is in one list at most.
    unsafe fn all_of(
        slab: Slab,
        queue: u16,
        home: SlabHome,
        lists: impl Iterator<Item = Vec<Entry>>,
    ) -> Vec<Self> {
        let Slab { hasher, buffer, packets: mut list, .. } = slab;
        list.clear();
        // SAFETY: the pointer of a box is not null.
        let buffer = unsafe { NonNull::new_unchecked(Box::into_raw(buffer)) };
        let slab = Arc::new(SharedSlab { buffer, hasher, list, queue, home });
        let part = |packets: Vec<Entry>| {
            let bytes = packets.iter().map(|entry| entry.len as usize).sum();
            Self { slab: Arc::clone(&slab), packets, bytes }
        };
        lists.map(part).collect()
    }

    /// Returns the first byte of a packet.
    fn start_of(&self, entry: Entry) -> *mut u8 {
        debug_assert!(entry.start as usize + entry.len as usize + TAILROOM <= self.slab.buffer.len());
        // SAFETY: `Slab::commit` made the entry after it had checked that the packet and its tail are in the
        // buffer.
        unsafe { self.slab.buffer.as_ptr().cast::<u8>().add(entry.start as usize) }
    }

    fn bytes_of(&self, entry: Entry) -> &[u8] {
        // SAFETY: the bytes are in the buffer (`start_of`), which lives as long as the part. `entry` is one
        // of this part, `Slab::commit` makes packets that do not overlap, and no other part has this one: a
        // `&mut` to its bytes would borrow this part mutably.
        unsafe { std::slice::from_raw_parts(self.start_of(entry), entry.len as usize) }
    }

    fn packet_at(&mut self, number: u32) -> Option<PacketMut<'_>> {
        let entry = *self.packets.get(number as usize)?;
        let len = entry.len as usize;
        // SAFETY: as in `bytes_of`, and the tail of a packet belongs to it alone. The result borrows the part
        // mutably.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start_of(entry), len + TAILROOM) };
        PacketMut::new(bytes, len, entry.offload)
    }
}

#[derive(Debug)]
enum Content {
    Whole(Slab),
    Part(Part),
}

/// A slab of packets in reading order, on its way through the packet thread, or the packets of a slab that
/// are for one packet thread. When the batch is dropped, and every other batch with packets of the slab, the
/// slab returns to its reader: a free slab is the reader's permit to read more.
#[derive(Debug)]
pub struct TunBatch {
    /// `None` once it was dropped or taken apart.
    content: Option<Content>,
    next: usize,
    queue: u16,
    home: SlabHome,
    /// Counts the slabs that a packet thread holds of another one.
    lent: Option<Arc<()>>,
}

impl TunBatch {
    /// Returns a batch of the packets in `slab`, which were read from queue `queue`. The slab returns through
    /// `home`.
    pub fn new(slab: Slab, queue: u16, home: impl Into<SlabHome>) -> Self {
        Self { content: Some(Content::Whole(slab)), next: 0, queue, home: home.into(), lent: None }
    }

    fn entries(&self) -> &[Entry] {
        match &self.content {
            Some(Content::Whole(slab)) => &slab.packets,
            Some(Content::Part(part)) => &part.packets,
            None => &[],
        }
    }

    /// Returns the number of packets in the batch, returned by [`Self::next_packet`] or not; a super-packet
    /// counts once.
    pub fn packets(&self) -> usize {
        self.entries().len()
    }

    /// Returns the bytes of the packets in the batch, returned by [`Self::next_packet`] or not.
    pub fn bytes(&self) -> usize {
        match &self.content {
            Some(Content::Whole(slab)) => slab.bytes,
            Some(Content::Part(part)) => part.bytes,
            None => 0,
        }
    }

    /// Returns the queue that the packets were read from, a number among all queues of the device.
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
        let slab = match self.content.as_mut()? {
            Content::Whole(slab) => slab,
            Content::Part(part) => return part.packet_at(number),
        };
        let entry = *slab.packets.get(number as usize)?;
        let (start, len) = (entry.start as usize, entry.len as usize);
        PacketMut::new(&mut slab.buffer[start..start + len + TAILROOM], len, entry.offload)
    }

    fn bytes_of(&self, entry: Entry) -> &[u8] {
        match &self.content {
            Some(Content::Whole(slab)) => &slab.buffer[entry.start as usize..][..entry.len as usize],
            Some(Content::Part(part)) => part.bytes_of(entry),
            None => &[],
        }
    }

    /// Returns every packet that [`Self::next_packet`] has not returned yet, without consuming it.
    pub fn remaining(&self) -> impl Iterator<Item = &[u8]> {
        self.entries()[self.next..].iter().map(|entry| self.bytes_of(*entry))
    }

    /// Removes packets of [`Self::remaining`] from the batch: those with `true` at their index in `wanted`.
    /// Returns for each its index, and a new slab with a copy of the packet.
    pub fn take_out(&mut self, wanted: &[bool]) -> Vec<(usize, Slab)> {
        let hasher = match &self.content {
            Some(Content::Whole(slab)) => slab.hasher,
            Some(Content::Part(part)) => part.slab.hasher,
            None => return Vec::new(),
        };
        let mut taken = Vec::new();
        let mut taken_bytes = 0;
        let mut kept = self.entries()[..self.next].to_vec();
        for (place, entry) in self.entries()[self.next..].iter().enumerate() {
            if !wanted.get(place).copied().unwrap_or_default() {
                kept.push(*entry);
                continue;
            }
            let len = entry.len as usize;
            let mut own = Slab::new(len + TAILROOM, hasher);
            own.spare_mut()[..len].copy_from_slice(self.bytes_of(*entry));
            own.commit(0, len, entry.offload);
            taken_bytes += len;
            taken.push((place, own));
        }
        let (packets, bytes) = match &mut self.content {
            Some(Content::Whole(slab)) => (&mut slab.packets, &mut slab.bytes),
            Some(Content::Part(part)) => (&mut part.packets, &mut part.bytes),
            None => return taken,
        };
        *packets = kept;
        *bytes -= taken_bytes;
        taken
    }

    /// Takes a batch of which no packet was returned yet apart: into one batch for each different value in
    /// `owners`, which has one for each packet. The packets stay where they are and in order.
    pub(crate) fn split(mut self, owners: &[u16]) -> Vec<(u16, Self)> {
        debug_assert!(self.next == 0 && owners.len() == self.packets());
        let mut lists: Vec<(u16, Vec<Entry>)> = Vec::new();
        for (entry, owner) in self.entries().iter().zip(owners) {
            match lists.iter_mut().find(|(other, _)| other == owner) {
                Some((_, list)) => list.push(*entry),
                None => lists.push((*owner, vec![*entry])),
            }
        }
        if lists.len() < 2 {
            return lists.into_iter().map(|(owner, _)| owner).zip([self]).collect();
        }
        let queue = self.queue;
        let home = std::mem::replace(&mut self.home, SlabHome::None);
        let (owners, lists): (Vec<_>, Vec<_>) = lists.into_iter().unzip();
        let parts = match self.content.take() {
            Some(Content::Whole(slab)) => {
                // SAFETY: the loop above has put each entry of the slab into one list.
                unsafe { Part::all_of(slab, queue, home, lists.into_iter()) }
            }
            Some(Content::Part(Part { slab, .. })) => {
                let part = |packets: Vec<Entry>| {
                    let bytes = packets.iter().map(|entry| entry.len as usize).sum();
                    Part { slab: Arc::clone(&slab), packets, bytes }
                };
                lists.into_iter().map(part).collect()
            }
            None => Vec::new(),
        };
        let batches = parts.into_iter().map(|part| Self {
            content: Some(Content::Part(part)),
            next: 0,
            queue,
            // The slab that the parts share knows where it returns to.
            home: SlabHome::None,
            lent: None,
        });
        owners.into_iter().zip(batches).collect()
    }

    /// Reports whether the slab returns to a reader, which waits for it.
    pub(crate) fn returns(&self) -> bool {
        let home = match &self.content {
            Some(Content::Part(part)) => &part.slab.home,
            Some(Content::Whole(_)) | None => &self.home,
        };
        !matches!(home, SlabHome::None)
    }

    /// Makes the batch one owner more of `count`, as long as it has the slab.
    pub(crate) fn lend(&mut self, count: &Arc<()>) {
        self.lent = Some(Arc::clone(count));
    }

    /// Takes every packet that [`Self::next_packet`] has not returned yet, and returns how many these would
    /// be on the wire.
    pub(crate) fn take_segments(&mut self) -> u64 {
        let mut segments = 0;
        while let Some(packet) = self.next_packet() {
            segments += packet.segments();
        }
        segments
    }

    /// Reports whether [`Self::next_packet`] has returned every packet.
    pub fn is_done(&self) -> bool {
        self.next >= self.packets()
    }
}

impl PacketBatch for TunBatch {
    fn remaining(&self) -> impl Iterator<Item = Remaining> {
        let numbered = (self.next as u32..).zip(&self.entries()[self.next..]);
        numbered.map(|(number, entry)| Remaining { number, bytes: entry.len, flow: entry.flow })
    }

    fn packet(&mut self, number: u32) -> Option<PacketMut<'_>> {
        self.packet_at(number)
    }
}

impl Drop for TunBatch {
    fn drop(&mut self) {
        // Before the slab is with its reader, which counts.
        self.lent = None;
        // A part sends its slab home when it is the last one.
        if let Some(Content::Whole(mut slab)) = self.content.take() {
            slab.clear();
            self.home.send(self.queue, slab);
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
        let mut batch = TunBatch::new(slab, 7, SlabHome::None);
        assert_eq!(flows(&batch), [1, 2].map(|port| hasher.hash(&packet(port))));
        let (_, taken) = batch.take_out(&[true, false]).remove(0);
        assert_eq!(flows(&TunBatch::new(taken, 7, SlabHome::None)), [hasher.hash(&packet(1))]);
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

    proptest::proptest! {
        #[test]
        fn parts_are_the_packets_of_the_slab_and_it_returns_once(
            packets in proptest::collection::vec((0_u16..4, 1_usize..40), 1..30),
        ) {
            let (home, free) = mpsc::channel();
            let mut slab = Slab::new(4000, FlowHasher::random());
            for (number, (_, len)) in packets.iter().enumerate() {
                slab.spare_mut()[10..10 + len].fill(number as u8);
                assert!(slab.commit(10, *len, Offload::None));
            }
            let owners: Vec<_> = packets.iter().map(|(owner, _)| *owner).collect();
            let parts = TunBatch::new(slab, 7, home).split(&owners);
            let mut seen = Vec::new();
            // Several threads have the packets of their parts mutably at once.
            let count = parts.len();
            let written: Vec<_> = parts
                .into_iter()
                .map(|(owner, mut part)| {
                    assert_eq!(part.queue(), 7);
                    let write = move || {
                        let (mut seen, bytes) = (Vec::new(), part.bytes());
                        while let Some(packet) = part.next_packet() {
                            let number = packet.bytes()[0];
                            assert!(packet.bytes().iter().all(|byte| *byte == number));
                            seen.push((usize::from(number), packet.bytes().len()));
                        }
                        assert_eq!(bytes, seen.iter().map(|(_, len)| len).sum::<usize>());
                        assert!(seen.is_sorted());
                        (owner, seen, part)
                    };
                    std::thread::spawn(write)
                })
                .collect::<Vec<_>>()
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            let mut left = count;
            for (owner, numbers, part) in written {
                assert!(numbers.iter().all(|(number, len)| packets[*number] == (owner, *len)));
                seen.extend(numbers);
                assert!(free.try_recv().is_err(), "a part is left");
                drop(part);
                left -= 1;
            }
            assert_eq!(left, 0);
            seen.sort_unstable();
            assert_eq!(seen, packets.iter().map(|(_, len)| *len).enumerate().collect::<Vec<_>>());
            let mut slab = free.try_recv().unwrap();
            assert!(slab.is_empty() && free.try_recv().is_err());
            assert_eq!(slab.spare_mut().len(), 4000);
        }
    }
}
