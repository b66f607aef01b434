//! What the packet threads of one device share: each has a contiguous range of the queues, which it alone
//! reads, and an inbox for packets that another thread read for it. Every thread writes to every queue.
//!
//! The inboxes need no bound: what is in them keeps the slabs that it was read into, and a queue
//! is not read without a slab. A thread that takes nothing for a second gets no more, and its queues' readers
//! get other slabs for those that it holds.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc as channel;

use crate::batch::{Slab, SlabHome, TunBatch};

mod progress;
mod stalls;

use progress::Progress;
use stalls::Stalls;

/// Slabs that one queue may use, beside those that stalled threads hold: about a megabyte is read ahead. A
/// thread never holds more slabs of a queue.
pub(super) const SLABS: usize = 6;

/// A packet thread, as the others see it.
#[derive(Debug)]
struct ShardEnd {
    own: Range<u16>,
    inbox: channel::UnboundedSender<TunBatch>,
    progress: Progress,
}

impl ShardEnd {
    fn send(&self, batch: TunBatch) {
        self.progress.push();
        // Sending fails only if the device of that thread was dropped.
        let _ = self.inbox.send(batch);
    }

    /// Makes the thread poll its inbox. `queue` is any of the sender's.
    fn wake(&self, queue: u16) {
        self.send(TunBatch::new(Slab::message(), queue, SlabHome::None));
    }
}

/// Packets of a queue, as its reader counts them.
#[derive(Debug, Default)]
struct Count {
    /// Packets read, but for those of the slab that is being filled.
    read: AtomicU64,
    /// Packets read that were handed over, if they are for another thread.
    handed_over: AtomicU64,
}

#[derive(Debug)]
struct Shards {
    each: Box<[ShardEnd]>,
    queues: Box<[Count]>,
}

/// One of several packet threads of a device.
#[derive(Debug)]
pub(super) struct Shard {
    number: u16,
    shared: Arc<Shards>,
    inbox: channel::UnboundedReceiver<TunBatch>,
    /// The owner of each packet of a batch.
    owners: Vec<u16>,
    /// For each own queue and each thread a count of the slabs of the queue that the thread holds: one less
    /// than the owners of the value.
    held: Box<[Box<[Arc<()>]>]>,
    stalls: Stalls,
}

/// Returns the queues of each packet thread.
pub(super) fn ranges(queues: usize, shards: usize) -> impl Iterator<Item = Range<u16>> {
    (0..shards).map(move |shard| (shard * queues / shards) as u16..((shard + 1) * queues / shards) as u16)
}

impl Shard {
    /// Returns the packet threads of a device. There must be a queue for each.
    pub(super) fn several(queues: usize, shards: usize) -> Vec<Self> {
        let (each, inboxes): (Vec<_>, Vec<_>) = ranges(queues, shards)
            .map(|own| {
                let (inbox, receiver) = channel::unbounded_channel();
                (ShardEnd { own, inbox, progress: Progress::new() }, receiver)
            })
            .unzip();
        let queues = (0..queues).map(|_| Count::default()).collect();
        let shared = Arc::new(Shards { each: each.into(), queues });
        let shard = |(number, inbox): (u16, _)| Self {
            number,
            shared: Arc::clone(&shared),
            inbox,
            owners: Vec::new(),
            held: shared.each[usize::from(number)]
                .own
                .clone()
                .map(|_| shared.each.iter().map(|_| Arc::default()).collect())
                .collect(),
            stalls: Stalls::new(shards),
        };
        (0..).zip(inboxes).map(shard).collect()
    }

    fn end(&self) -> &ShardEnd {
        &self.shared.each[usize::from(self.number)]
    }

    /// Returns the queues that this thread reads.
    pub(super) fn own(&self) -> Range<u16> {
        self.end().own.clone()
    }

    /// Takes a batch from the inbox.
    pub(super) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<TunBatch> {
        // The channel never closes: `shared` has a sender.
        while let Poll::Ready(Some(batch)) = self.inbox.poll_recv(cx) {
            self.end().progress.take();
            // Without packets, another thread only woke this one.
            if batch.packets() > 0 {
                return Poll::Ready(batch);
            }
        }
        Poll::Pending
    }

    /// Announces that this thread may read packets of others from now on, until [`Self::settle`].
    pub(super) fn begin(&mut self) {
        self.end().progress.begin();
        self.stalls.refresh(&self.shared.each);
    }

    /// Returns the number of slabs of an own queue that stalled threads hold.
    pub(super) fn stalled_slabs(&self, queue: u16) -> usize {
        self.stalls.iter().map(|shard| self.slabs_held(queue, shard)).sum()
    }

    fn slabs_held(&self, queue: u16, shard: usize) -> usize {
        Arc::strong_count(&self.held[usize::from(queue - self.own().start)][shard]) - 1
    }

    /// Checks whether other threads are stalled. Call it while an own queue waits for a slab. Returns whether
    /// one more is: then the queue may have another slab.
    pub(super) fn poll_stalls(&mut self, cx: &mut Context<'_>) -> bool {
        self.stalls.poll(cx, self.number, &self.shared.each)
    }

    /// Publishes the number of packets read from an own queue.
    pub(super) fn note_read(&self, queue: u16, packets: u64) {
        self.shared.queues[usize::from(queue)].read.store(packets, Ordering::SeqCst);
    }

    /// Hands packets for other threads over, as [`crate::Tun::hand_over`].
    pub(super) fn hand_over(
        &mut self,
        batches: &mut VecDeque<TunBatch>,
        mut shard_of: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        let own = self.own();
        let mut dropped = 0;
        for _ in 0..batches.len() {
            let Some(batch) = batches.pop_front() else { break };
            // What another thread has handed over is for this one.
            if !own.contains(&batch.queue()) {
                batches.push_back(batch);
                continue;
            }
            let Self { number, shared, owners, .. } = &mut *self;
            owners.clear();
            owners.extend(batch.remaining().map(|packet| {
                let other = shard_of(packet).filter(|other| usize::from(*other) < shared.each.len());
                other.unwrap_or(*number)
            }));
            if owners.iter().all(|owner| owner == number) {
                batches.push_back(batch);
                continue;
            }
            let number = *number;
            for (owner, mut part) in batch.split(owners) {
                let shard = usize::from(owner);
                if owner == number {
                    batches.push_back(part);
                    continue;
                }
                // It has all slabs that it may have if it was stalled before, and took others' slabs since.
                let takes_no_more = part.returns() && self.slabs_held(part.queue(), shard) >= SLABS;
                if takes_no_more || self.stalls.is_stalled(shard) {
                    dropped += part.take_segments();
                    continue;
                }
                if part.returns() {
                    part.lend(&self.held[usize::from(part.queue() - own.start)][shard]);
                }
                self.shared.each[shard].send(part);
            }
        }
        dropped
    }

    /// Announces that everything read was handed over. `packets` has the number of packets of each own
    /// queue, in order.
    pub(super) fn settle(&self, packets: impl Iterator<Item = u64>) {
        for (queue, packets) in self.own().zip(packets) {
            self.shared.queues[usize::from(queue)].handed_over.store(packets, Ordering::SeqCst);
        }
        self.end().progress.settle();
        for (number, other) in (0..).zip(&self.shared.each) {
            if number != self.number && other.progress.take_wish() {
                other.wake(self.own().start);
            }
        }
    }

    /// As [`Progress::want_wake`].
    pub(super) fn want_wake(&self) {
        self.end().progress.want_wake();
    }

    /// Reports whether nothing read from the queue of another thread is on its way to this thread. Check
    /// before that no packet can be read from the queue.
    pub(super) fn has_all_of(&self, queue: u16) -> bool {
        let reader = self.shared.each.iter().find(|end| end.own.contains(&queue));
        reader
            .map_or_else(|| self.inbox_is_empty(), |reader| self.end().progress.has_all_of(&reader.progress))
    }

    /// Reports whether everything that was handed over to this thread has been taken.
    pub(super) fn inbox_is_empty(&self) -> bool {
        self.end().progress.inbox_is_empty()
    }

    /// Returns the number of packets that were read from the queue of another thread, but for a slab.
    pub(super) fn packets_read(&self, queue: u16) -> u64 {
        self.shared.queues[usize::from(queue)].read.load(Ordering::SeqCst)
    }

    /// Returns a number of packets of the queue of another thread of which those for this thread have been
    /// taken.
    pub(super) fn packets_passed(&self, queue: u16) -> u64 {
        // The count is published after the packets were put into the inbox, so the inbox is checked after the
        // count.
        let packets = self.shared.queues[usize::from(queue)].handed_over.load(Ordering::SeqCst);
        if self.inbox_is_empty() { packets } else { 0 }
    }
}
