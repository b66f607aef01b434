//! The flows of a device with several queues: the queue of each flow, and its order while it moves between
//! queues. Used on the packet thread, which takes batches from the queues and stages packets for them.

use std::collections::VecDeque;
use std::ops::Range;

use weft_sched::flow::{FlowHash, FlowTable};

use crate::batch::TunBatch;

mod queue_overload;
mod reorder_guard;

use queue_overload::QueueOverload;
pub(crate) use reorder_guard::Pipelines;
use reorder_guard::ReorderGuard;

/// The queue of each flow that a packet thread knows, for another one that its flows move to.
#[derive(Debug)]
pub struct FlowQueues(FlowTable);

/// The flows of a device.
pub(crate) struct Flows {
    table: FlowTable,
    guard: ReorderGuard,
    overload: QueueOverload,
}

impl Flows {
    /// Returns the flows of a device with `queues` queues, of which this packet thread reads `own`; `None`
    /// with one queue, where no flow can move.
    pub(crate) fn across(queues: usize, own: Range<u16>) -> Option<Self> {
        (queues > 1).then(|| {
            let (table, guard) = (FlowTable::new(own.clone()), ReorderGuard::new(queues));
            Self { table, guard, overload: QueueOverload::new(queues, own) }
        })
    }

    /// Reports whether packets of moved flows are held.
    pub(crate) fn holds_any(&self) -> bool {
        self.guard.holds_any()
    }

    /// Reports whether packets are held that may be those of another packet thread.
    ///
    /// This thread sees the flows of the others in its own queues only, so what waits for the queue of
    /// another thread is its own. If that counted too, two threads could wait for each other.
    pub(crate) fn holds_for_others(&self, own: &Range<u16>) -> bool {
        self.guard.holds_behind(own)
    }

    /// Forwards the next batch that was read to `out`, except for packets of moved flows that have to wait.
    /// Returns the number of bytes forwarded.
    pub(crate) fn offer(
        &mut self,
        batch: TunBatch,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let Self { table, guard, overload, .. } = self;
        let queue = batch.queue();
        guard.offer(batch, table, pipelines, out, |flow, bytes| overload.observe(queue, flow, bytes))
    }

    /// Estimates the number of flows in a queue, at least 1.
    pub(crate) fn count_in(&self, queue: u16) -> usize {
        self.overload.flows(queue)
    }

    /// Checks after a batch whether one flow overloads the queue, as [`QueueOverload::poll_drops`].
    pub(crate) fn poll_drops(&mut self, queue: u16, dropped: impl FnOnce() -> u64) {
        self.overload.poll_drops(queue, dropped);
    }

    /// Forwards packets that need not wait any longer. Returns the number of bytes forwarded.
    pub(crate) fn release(&mut self, pipelines: &impl Pipelines, out: &mut VecDeque<TunBatch>) -> usize {
        if self.guard.holds_any() { self.guard.release(pipelines, out) } else { 0 }
    }

    /// Forwards every held packet: nothing more will be read. Returns the number of bytes forwarded.
    pub(crate) fn release_all(&mut self, out: &mut VecDeque<TunBatch>) -> usize {
        self.guard.release_all(out)
    }

    /// Returns the queue to write the next packet of the flow to. `next_item` and `completed` are those of
    /// [`FlowTable::stage`].
    #[inline]
    pub(crate) fn stage(
        &mut self,
        flow: FlowHash,
        next_item: impl Fn(u16) -> u64,
        completed: impl Fn(u16) -> u64,
    ) -> u16 {
        let overload = &self.overload;
        self.table.stage(flow, |wanted| overload.instead_of(wanted, flow), next_item, completed)
    }

    /// Returns the queues of the flows.
    pub(crate) fn queues(&self) -> FlowQueues {
        FlowQueues(self.table.clone())
    }

    /// Takes over the queues of the flows of another packet thread, as [`FlowTable::inherit`].
    pub(crate) fn inherit(&mut self, queues: &FlowQueues, completed: impl Fn(u16) -> u64) {
        self.table.inherit(&queues.0, completed);
    }

    /// Starts a new batch of packets to write: flows used in earlier batches count as older.
    pub(crate) fn tick(&mut self) {
        self.table.tick();
    }
}
