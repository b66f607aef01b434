//! A batch of outbound packets, between the reader of a queue and the packet thread.

use std::sync::mpsc;

use weft_tunnel::{Offload, PacketMut, TAILROOM};

/// A buffer that a reader fills with packets, each with its headroom in front.
#[derive(Debug)]
pub struct Slab {
    buffer: Box<[u8]>,
    used: usize,
    packets: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    len: u32,
    offload: Offload,
}

impl Slab {
    /// An empty slab of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self { buffer: vec![0; bytes].into_boxed_slice(), used: 0, packets: Vec::new() }
    }

    /// The free bytes behind the packets that it already holds.
    pub fn spare_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.used..]
    }

    /// Keeps the packet of `len` bytes that was written at `headroom` in [`Self::spare_mut`]. False, and
    /// nothing kept, if there is no room for it and its tail.
    pub fn commit(&mut self, headroom: usize, len: usize, offload: Offload) -> bool {
        let start = self.used + headroom;
        let end = start + len + TAILROOM;
        if end > self.buffer.len() {
            return false;
        }
        self.packets.push(Entry { start: start as u32, len: len as u32, offload });
        self.used = end;
        true
    }

    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Packets that it holds: a super-packet counts once.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    fn clear(&mut self) {
        self.used = 0;
        self.packets.clear();
    }
}

/// A slab of packets in reading order, on its way through the packet thread. Dropping it returns the slab to
/// the reader it came from: a free slab is the reader's permit to read more.
#[derive(Debug)]
pub struct TunBatch {
    slab: Option<Slab>,
    next: usize,
    queue: u16,
    home: mpsc::Sender<Slab>,
}

impl TunBatch {
    /// A batch of what `slab` holds, read from queue `queue`; the slab goes back through `home`.
    pub fn new(slab: Slab, queue: u16, home: mpsc::Sender<Slab>) -> Self {
        Self { slab: Some(slab), next: 0, queue, home }
    }

    /// The queue that the packets were read from.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The next packet, in reading order; each is given out once.
    pub fn next_packet(&mut self) -> Option<PacketMut<'_>> {
        let slab = self.slab.as_mut()?;
        let entry = *slab.packets.get(self.next)?;
        self.next += 1;
        let (start, len) = (entry.start as usize, entry.len as usize);
        PacketMut::new(&mut slab.buffer[start..start + len + TAILROOM], len, entry.offload)
    }

    /// Every packet that was not given out yet, without consuming it.
    pub fn remaining(&self) -> impl Iterator<Item = &[u8]> {
        let slab = self.slab.as_ref();
        let entries = slab.map_or(&[][..], |slab| &slab.packets[self.next..]);
        entries.iter().filter_map(move |entry| {
            let start = entry.start as usize;
            slab?.buffer.get(start..start + entry.len as usize)
        })
    }

    /// Whether every packet was given out.
    pub fn is_done(&self) -> bool {
        self.slab.as_ref().is_none_or(|slab| self.next >= slab.packets.len())
    }
}

impl Drop for TunBatch {
    fn drop(&mut self) {
        if let Some(mut slab) = self.slab.take() {
            slab.clear();
            // The reader has stopped if this fails: then the slab has no home left.
            let _ = self.home.send(slab);
        }
    }
}
