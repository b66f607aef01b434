//! Reads a queue until it is empty: the first step of an outbound packet. Before it: the kernel's ring. After
//! it: the channel to the packet thread, which all readers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use tokio::sync::mpsc as channel;

use super::pulse::{Line, Wait};
use super::queue::{HEADROOM, Queue, READ_ROOM, Read, Until};
use crate::batch::{Slab, TunBatch};
use crate::stats::QueueStats;

/// Bytes of a slab: three times the longest super-packet, or about 130 packets of 1,420 bytes.
pub(super) const SLAB_BYTES: usize = 3 * READ_ROOM;
/// Slabs per reader: one being filled, one in the channel, one with the packet thread.
pub(super) const SLABS: usize = 3;
/// Maximum number of packets in a slab: headers of 20 bytes without payload.
pub(super) const MAX_PACKETS: u64 = (SLAB_BYTES / (HEADROOM + 20 + weft_tunnel::TAILROOM)) as u64;

/// Why [`drain`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// No packet is left to read.
    Empty,
    /// The slab has no room for another super-packet.
    Full,
    /// The device does not exist any more.
    Gone,
}

/// A queue that gave fewer packets, and no full slab, was never full, so that the kernel dropped none.
const MANY_PACKETS: u64 = 64;

/// Reads into `slab` until the queue is empty or the slab full.
pub(super) fn drain(queue: &impl Queue, slab: &mut Slab, stats: &QueueStats) -> Drained {
    let (mut packets, mut segments, mut bytes, mut calls, mut malformed) = (0, 0, 0, 0, 0);
    let drained = loop {
        if slab.spare_mut().len() < READ_ROOM {
            break Drained::Full;
        }
        calls += 1;
        match queue.read(slab) {
            Read::Packet { bytes: more_bytes, segments: more_segments } => {
                packets += 1;
                segments += more_segments;
                bytes += more_bytes;
            }
            Read::Malformed => malformed += 1,
            Read::Empty => break Drained::Empty,
            Read::Gone => break Drained::Gone,
        }
    };
    let stats = &stats.outbound;
    if drained == Drained::Full || packets >= MANY_PACKETS {
        stats.uncounted_drops.add(queue.poll_drops());
    }
    stats.read_calls.add(calls);
    stats.packets_read.add(packets);
    stats.segments_read.add(segments);
    stats.bytes_read.add(bytes);
    stats.malformed_reads.add(malformed);
    stats.batches_read.add(u64::from(packets > 0));
    drained
}

/// Progress of a reader, for the reorder guard of the packet thread.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Whether the reader waits for a packet: everything read is in the channel, and the queue was empty.
    pub(super) idle: AtomicBool,
    /// Batches put into the channel.
    pub(super) batches: AtomicU64,
    /// Packets in them.
    pub(super) packets: AtomicU64,
}

/// The state of a reader thread.
pub(super) struct Reader<Q> {
    pub(super) number: u16,
    pub(super) queue: Arc<Q>,
    pub(super) line: Arc<Line>,
    pub(super) free: mpsc::Receiver<Slab>,
    pub(super) home: mpsc::Sender<Slab>,
    pub(super) batches: channel::Sender<TunBatch>,
    pub(super) progress: Arc<Progress>,
    pub(super) stats: Arc<QueueStats>,
}

impl<Q: Queue> Reader<Q> {
    /// Reads until the device is gone or stopped.
    pub(super) fn run(self) {
        'slab: while let Ok(mut slab) = self.free.recv() {
            // A slab without bytes is a message: a question (`Pulse`) or the stop, for a reader that waits
            // for a slab.
            if slab.spare_mut().is_empty() {
                self.line.answer_queued();
                if self.line.is_stopped() {
                    return;
                }
                continue;
            }
            while !self.line.is_stopped() {
                self.line.answer();
                let drained = drain(&*self.queue, &mut slab, &self.stats);
                if slab.is_empty() {
                    if self.may_follow(drained) {
                        continue;
                    }
                    return;
                }
                self.hand_over(slab);
                if self.may_follow(drained) {
                    continue 'slab;
                }
                return;
            }
            return;
        }
    }

    fn hand_over(&self, slab: Slab) {
        self.progress.packets.fetch_add(slab.packets() as u64, Ordering::SeqCst);
        self.progress.batches.fetch_add(1, Ordering::SeqCst);
        let batch = TunBatch::new(slab, self.number, self.home.clone());
        // The channel has room for every slab. Sending fails only when the device is being dropped.
        let _ = self.batches.try_send(batch);
    }

    /// Reports whether another packet may follow. Waits for it after the queue was read empty.
    fn may_follow(&self, drained: Drained) -> bool {
        match drained {
            Drained::Full => true,
            Drained::Empty => self.wait(),
            Drained::Gone => false,
        }
    }

    /// Waits for a packet. Returns false if no packet will follow: the device is gone or being stopped.
    fn wait(&self) -> bool {
        self.progress.idle.store(true, Ordering::SeqCst);
        let wait = self.line.wait(&*self.queue, Until::Readable);
        self.progress.idle.store(false, Ordering::SeqCst);
        wait == Wait::Ready
    }
}
