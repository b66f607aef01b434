//! What only a device with several queues needs: which queue each flow belongs to, and its order while it moves
//! between them. Used on the packet thread, where batches come from the queues and where packets are staged for them.

use std::collections::VecDeque;

use super::crowds::Crowds;
use super::fence::{Fence, Pipelines};
use crate::batch::TunBatch;
use crate::flow::{FlowHasher, FlowTable};

/// The flows of a device.
pub(super) struct Flows {
    hasher: FlowHasher,
    table: FlowTable,
    fence: Fence,
    crowds: Crowds,
}

impl Flows {
    /// Those of a device with `queues` queues; with one there is nothing to keep.
    pub(super) fn across(queues: usize) -> Option<Self> {
        (queues > 1).then(|| {
            let hasher = FlowHasher::random();
            let (table, fence) = (FlowTable::new(queues as u16), Fence::new(hasher, queues));
            Self { hasher, table, fence, crowds: Crowds::new(queues) }
        })
    }

    /// Whether packets of flows that moved are held back.
    pub(super) fn holds_any(&self) -> bool {
        self.fence.holds_any()
    }

    /// Takes the next batch that was read to `out`, but for the packets of flows that moved and have to wait. Gives the
    /// bytes let through.
    pub(super) fn offer(
        &mut self,
        batch: TunBatch,
        pipelines: &impl Pipelines,
        out: &mut VecDeque<TunBatch>,
    ) -> usize {
        let Self { table, fence, crowds, .. } = self;
        let queue = batch.queue();
        fence.offer(batch, table, pipelines, out, |flow, bytes| crowds.saw(queue, flow, bytes))
    }

    /// About how many flows share a queue, at least 1.
    pub(super) fn sharing(&self, queue: u16) -> usize {
        self.crowds.flows(queue)
    }

    /// After a batch was taken from a queue: others may have to be kept away from it from now on. As [`Crowds::look`].
    pub(super) fn look(&mut self, queue: u16, dropped: impl FnOnce() -> u64) {
        self.crowds.look(queue, dropped);
    }

    /// Lets through what need not wait any longer. Gives the bytes let through.
    pub(super) fn release(&mut self, pipelines: &impl Pipelines, out: &mut VecDeque<TunBatch>) -> usize {
        if self.fence.holds_any() { self.fence.release(pipelines, out) } else { 0 }
    }

    /// Lets everything through: nothing more will be read.
    pub(super) fn release_all(&mut self, out: &mut VecDeque<TunBatch>) -> usize {
        self.fence.release_all(out)
    }

    /// The queue that `packet` is to be written to; the rest is as in [`FlowTable::stage`].
    #[inline]
    pub(super) fn stage(
        &mut self,
        packet: &[u8],
        next_item: impl Fn(u16) -> u64,
        completed: impl Fn(u16) -> u64,
    ) -> u16 {
        let (flow, crowds) = (self.hasher.hash(packet), &self.crowds);
        self.table.stage(flow, |wanted| crowds.instead_of(wanted, flow), next_item, completed)
    }

    /// Starts a new batch of packets to write: what was used in earlier ones is older.
    pub(super) fn tick(&mut self) {
        self.table.tick();
    }
}
