//! A device without threads: the packet thread reads and writes the queues itself, without a hand-over. It
//! takes the place of `threads.rs`, and drains and writes with the same code.
//!
//! The kernel's ring of a queue is first in, first out. Several queues are read in rounds, so a flow that
//! fills its ring delays only the flows that share the ring.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use weft_sched::DeficitRoundRobin;
use weft_sched::flow::FlowHasher;
use weft_tunnel::{PlainSlab, Plaintext};

use super::alarm::Alarm;
use super::descriptor;
use super::plain_batch::PlainBatch;
use super::queue::Queue;
use super::reader::{self, Drained};
use super::shards::Shard;
use super::writer::{BatchWriter, Coalescing, Written};
use crate::batch::TunBatch;
use crate::flows::{FlowQueues, Flows, Pipelines};
use crate::stats::{QueueStats, TunStats};

mod slabs;

use slabs::Slabs;

/// The registration with the runtime that polls the device, made at the first poll.
struct Readiness<Q: Queue> {
    /// Every queue of the device, also those that another packet thread reads.
    queues: Box<[Arc<AsyncFd<Arc<Q>>>]>,
    /// Completes when the device is deleted, which tokio does not report as readable. The kernel detaches all
    /// queues at once, so it is enough to watch one queue.
    gone: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<Q: Queue> Readiness<Q> {
    fn register(queues: &[InlineQueue<Q>], own: &Range<u16>) -> io::Result<Self> {
        let register = |(number, inline): (u16, &InlineQueue<Q>)| {
            // A packet in a queue of another thread must not wake this one.
            let reads = own.contains(&number);
            let interest = if reads { Interest::READABLE | Interest::WRITABLE } else { Interest::WRITABLE };
            let queue = Arc::clone(&inline.queue);
            // SAFETY: a `Queue` returns the same descriptor each time, and keeps it open as long as it lives.
            let registered = unsafe { AsyncFd::register_with_interest(queue, interest) };
            registered.map(Arc::new).map_err(io::Error::from)
        };
        let queues = (0..).zip(queues).map(register).collect::<io::Result<Box<[_]>>>()?;
        let watched =
            queues.get(usize::from(own.start)).map(Arc::clone).ok_or(io::ErrorKind::InvalidInput)?;
        let gone = Box::pin(async move { drop(watched.ready(Interest::ERROR).await) });
        Ok(Self { queues, gone })
    }

    fn of<'a>(this: &'a mut Option<Self>, queues: &InlineQueues<Q>) -> io::Result<&'a mut Self> {
        Ok(match this {
            Some(readiness) => readiness,
            none => none.insert(Self::register(&queues.each, &queues.own)?),
        })
    }
}

/// A queue, in both directions.
struct InlineQueue<Q> {
    queue: Arc<Q>,
    /// Packets read so far.
    packets_read: u64,
    writer: BatchWriter,
    /// Whether some packets of the batch are not written to the queue yet.
    is_writing: bool,
    stats: Arc<QueueStats>,
}

struct InlineQueues<Q> {
    name: String,
    each: Box<[InlineQueue<Q>]>,
    /// The queues that this packet thread reads.
    own: Range<u16>,
    /// `None` with one packet thread.
    shard: Option<Shard>,
    /// Batches that all queues have completed. A batch starts only after the previous batch is complete.
    completed: u64,
}

impl<Q: Queue> InlineQueues<Q> {
    /// Returns the packet thread that takes part if the queue is one of another thread.
    fn foreign(&self, queue: u16) -> Option<&Shard> {
        self.shard.as_ref().filter(|_| !self.own.contains(&queue))
    }

    /// Ends what [`Shard::begin`] began, unless packets are held that may be for another thread.
    fn settle(&self, flows: Option<&Flows>) {
        if let Some(shard) = &self.shard
            && !flows.is_some_and(|flows| flows.holds_any() && flows.holds_for_others(&self.own))
        {
            let own = &self.each[usize::from(self.own.start)..usize::from(self.own.end)];
            shard.settle(own.iter().map(|queue| queue.packets_read));
        }
    }
}

impl<Q: Queue> Pipelines for InlineQueues<Q> {
    fn is_drained(&self, queue: u16, _taken: u64) -> bool {
        // Packets that were read from an own queue were offered to the guard at once.
        !descriptor::is_readable(&*self.each[usize::from(queue)].queue)
            && self.foreign(queue).is_none_or(|shard| shard.has_all_of(queue))
    }

    fn packets_until_now(&self, queue: u16) -> u64 {
        let read = match self.foreign(queue) {
            None => self.each[usize::from(queue)].packets_read,
            Some(shard) => shard.packets_read(queue) + reader::MAX_PACKETS,
        };
        read + self.each[usize::from(queue)].queue.ring_packets(&self.name)
    }

    fn packets_passed(&self, queue: u16, offered: u64) -> u64 {
        self.foreign(queue).map_or(offered, |shard| shard.packets_passed(queue))
    }

    fn completed(&self, _writer: u16) -> u64 {
        self.completed
    }
}

/// Bytes of a poll, or of a step of it.
#[derive(Clone, Copy, Default)]
struct Bytes {
    /// Read from a queue or from the inbox.
    read: usize,
    /// Of these and of what was held, passed on.
    taken: usize,
}

/// The queues of a device and their slabs.
pub(super) struct Inline<Q: Queue> {
    queues: InlineQueues<Q>,
    readiness: Option<Readiness<Q>>,
    /// The pause before the next attempt to write to a queue that does not announce room.
    alarm: Alarm,
    is_gone: bool,
    scheduler: DeficitRoundRobin,
    slabs: Slabs,
    batch: PlainBatch,
    /// Whether `batch` is being written, so that it must not change.
    is_writing: bool,
    no_slab: PlainSlab,
    flows: Option<Flows>,
}

impl<Q: Queue> Inline<Q> {
    /// Returns a device. `queues` must not be empty. Without a shard, the device has one packet thread.
    #[allow(clippy::unnecessary_wraps, reason = "Windows has no such devices")]
    pub(super) fn new(
        name: &str,
        queues: &[Arc<Q>],
        shard: Option<Shard>,
        hasher: FlowHasher,
        coalescing: &Arc<Coalescing>,
        stats: &TunStats,
    ) -> io::Result<Self> {
        let count = queues.len();
        let own = shard.as_ref().map_or(0..count as u16, Shard::own);
        let open = |(queue, stats): (&Arc<Q>, &Arc<QueueStats>)| InlineQueue {
            queue: Arc::clone(queue),
            packets_read: 0,
            writer: BatchWriter::new(Arc::clone(coalescing), Arc::clone(stats)),
            is_writing: false,
            stats: Arc::clone(stats),
        };
        let each = queues.iter().zip(stats.each()).map(open).collect();
        // The inbox is one more queue to take from.
        let scheduler = DeficitRoundRobin::new(own.len() + usize::from(shard.is_some()));
        Ok(Self {
            slabs: Slabs::new(own.clone(), shard.is_some(), hasher),
            flows: Flows::across(count, own.clone()),
            queues: InlineQueues { name: name.to_owned(), each, own, shard, completed: 0 },
            readiness: None,
            alarm: Alarm::default(),
            is_gone: false,
            scheduler,
            batch: PlainBatch::new(count, hasher, coalescing.joins()),
            is_writing: false,
            no_slab: PlainSlab::new(0),
        })
    }

    pub(super) fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        if let Some(shard) = &mut self.queues.shard {
            // Before anything is read, and before anything that is held goes on.
            shard.begin();
        }
        let released = self.release(out);
        // Held packets count as read too, otherwise a poll could read the new queue of a moved flow empty
        // before the old queue.
        let mut sum = Bytes { read: released, taken: released };
        // A round reads at most one slab of each queue.
        self.scheduler.begin_round();
        while sum.read < max_bytes && !self.is_gone {
            let step = match self.scheduler.next() {
                Some(place) if place < self.queues.own.len() => self.read_queue(place, cx, out)?,
                Some(place) => self.take_inbox(place, cx, out),
                None if self.scheduler.has_delivered() => {
                    self.scheduler.begin_round();
                    continue;
                }
                None => break,
            };
            sum.read += step.read;
            sum.taken += step.taken;
        }
        if sum.taken == 0 {
            sum.taken = self.take_none(sum.read, cx, out)?;
        }
        if sum.taken > 0 || self.is_gone { Poll::Ready(Ok(sum.taken)) } else { Poll::Pending }
    }

    /// Reads a slab of an own queue, the scheduler's `place`.
    fn read_queue(
        &mut self,
        place: usize,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
    ) -> io::Result<Bytes> {
        let Self { queues, readiness, scheduler, slabs, flows, .. } = self;
        let queue = queues.own.start + place as u16;
        let number = usize::from(queue);
        let Poll::Ready(guard) = Readiness::of(readiness, queues)?.queues[number].poll_read_ready(cx) else {
            scheduler.mark_empty(place);
            return Ok(Bytes::default());
        };
        let mut guard = guard?;
        let stalled = queues.shard.as_ref().map_or(0, |shard| shard.stalled_slabs(queue));
        let Some(mut slab) = slabs.take(cx, place, stalled) else {
            if queues.shard.as_mut().is_some_and(|shard| shard.poll_stalls(cx)) {
                cx.waker().wake_by_ref();
            }
            return Ok(Bytes::default());
        };
        let inline = &mut queues.each[number];
        let drained = reader::drain(&*inline.queue, &mut slab, &inline.stats);
        match drained {
            Drained::Full => {}
            Drained::Empty => guard.clear_ready(),
            Drained::Gone => self.is_gone = true,
        }
        // Each flow gets the same number of bytes, not each queue.
        let sharing = flows.as_ref().map_or(1, |flows| flows.count_in(queue));
        scheduler.record(place, slab.bytes() / sharing);
        inline.packets_read += slab.packets() as u64;
        if let Some(shard) = &queues.shard {
            shard.note_read(queue, inline.packets_read);
        }
        let read = slab.bytes();
        let batch = slabs.batch(place, slab);
        let Some(flows) = flows else {
            out.extend(batch);
            return Ok(Bytes { read, taken: read });
        };
        let mut taken = batch.map_or(0, |batch| flows.offer(batch, queues, out));
        flows.poll_drops(queue, || queues.each[number].queue.dropped(&queues.name));
        if drained == Drained::Empty {
            taken += flows.release(queues, out);
        }
        Ok(Bytes { read, taken })
    }

    /// Takes a batch that another packet thread has handed over. For the scheduler the inbox is one more
    /// queue, at `place`.
    fn take_inbox(&mut self, place: usize, cx: &mut Context<'_>, out: &mut VecDeque<TunBatch>) -> Bytes {
        let Self { queues, scheduler, flows, .. } = self;
        let Some((shard, flows)) = queues.shard.as_mut().zip(flows.as_mut()) else {
            return Bytes::default();
        };
        let Poll::Ready(batch) = shard.poll_recv(cx) else {
            scheduler.mark_empty(place);
            return Bytes { read: 0, taken: flows.release(queues, out) };
        };
        let read = batch.bytes();
        scheduler.record(place, read / flows.count_in(batch.queue()));
        Bytes { read, taken: flows.offer(batch, queues, out) }
    }

    /// Takes what is held for moved flows and need not wait any more.
    fn release(&mut self, out: &mut VecDeque<TunBatch>) -> usize {
        let Self { queues, flows, .. } = self;
        flows.as_mut().map_or(0, |flows| flows.release(queues, out))
    }

    /// Looks why a poll that has read `read` bytes takes none of them, and makes sure that it is polled
    /// again. Returns the bytes that it takes after all.
    fn take_none(
        &mut self,
        read: usize,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
    ) -> io::Result<usize> {
        let Self { queues, readiness, is_gone, flows, .. } = self;
        if !*is_gone {
            *is_gone = Readiness::of(readiness, queues)?.gone.as_mut().poll(cx).is_ready();
        }
        let mut taken = 0;
        if let Some(flows) = flows {
            if *is_gone {
                taken = flows.release_all(out);
            } else if read > 0 {
                // Everything read is held, and there may be more to read. If nothing was read, the queue that
                // the held packets wait for is not readable yet.
                cx.waker().wake_by_ref();
            } else if let Some(shard) = queues.shard.as_ref().filter(|_| flows.holds_any()) {
                // What is held may wait for another thread instead, which nothing else tells.
                shard.want_wake();
                taken = flows.release(queues, out);
            }
        }
        if taken == 0 {
            queues.settle(flows.as_ref());
        }
        Ok(taken)
    }

    pub(super) fn hand_over(
        &mut self,
        batches: &mut VecDeque<TunBatch>,
        shard_of: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        let Self { queues, flows, .. } = self;
        let Some(shard) = &mut queues.shard else { return 0 };
        let dropped = shard.hand_over(batches, shard_of);
        queues.settle(flows.as_ref());
        dropped
    }

    pub(super) fn flow_queues(&self) -> Option<FlowQueues> {
        self.flows.as_ref().map(Flows::queues)
    }

    pub(super) fn inherit_flow_queues(&mut self, queues: &FlowQueues) {
        let completed = self.queues.completed;
        if let Some(flows) = &mut self.flows {
            flows.inherit(queues, |_| completed);
        }
    }

    pub(super) fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_writing {
            return Poll::Ready(Ok(()));
        }
        let Self { queues, readiness, alarm, batch, .. } = self;
        ready!(alarm.poll(cx))?;
        let readiness = Readiness::of(readiness, queues)?;
        let (mut blocked, mut pause) = (false, None);
        for ((inline, queue), staged) in queues.each.iter_mut().zip(&readiness.queues).zip(&batch.staged) {
            while inline.is_writing {
                let Poll::Ready(guard) = queue.poll_write_ready(cx) else {
                    blocked = true;
                    break;
                };
                let mut guard = guard?;
                match inline.writer.resume(&*inline.queue, &batch.slab, staged) {
                    Written::Blocked => guard.clear_ready(),
                    Written::Pause(more) => {
                        pause = Some(pause.map_or(more, |pause: Duration| pause.min(more)));
                        break;
                    }
                    Written::All => inline.is_writing = false,
                }
            }
        }
        if let Some(pause) = pause {
            alarm.set(pause);
            ready!(alarm.poll(cx))?;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if blocked {
            return Poll::Pending;
        }
        self.is_writing = false;
        self.complete();
        Poll::Ready(Ok(()))
    }

    /// Returns the number of packets that this packet thread has written.
    pub(super) fn packets_taken(&self) -> u64 {
        self.queues.each.iter().map(|queue| queue.writer.packets_written()).sum()
    }

    pub(super) fn plain_slab(&mut self) -> &mut PlainSlab {
        if self.is_writing { &mut self.no_slab } else { &mut self.batch.slab }
    }

    pub(super) fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        if self.is_writing {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Self { queues, batch, flows, .. } = self;
        let completed = queues.completed;
        batch.stage(packet, |flow| match flows {
            Some(flows) => flows.stage(flow, |_| completed + 1, |_| completed),
            None => 0,
        });
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_writing {
            return Ok(());
        }
        let Self { queues, batch, is_writing, alarm, flows, .. } = self;
        if let Some(flows) = flows {
            flows.tick();
        }
        for (inline, staged) in queues.each.iter_mut().zip(&batch.staged) {
            if staged.is_empty() {
                continue;
            }
            inline.writer.start(&batch.slab, staged);
            let written = inline.writer.resume(&*inline.queue, &batch.slab, staged);
            if let Written::Pause(pause) = written {
                alarm.set(pause);
            }
            inline.is_writing = written != Written::All;
            *is_writing |= inline.is_writing;
        }
        if !*is_writing {
            self.complete();
        }
        Ok(())
    }

    fn complete(&mut self) {
        self.queues.completed += 1;
        self.batch.clear();
    }
}
