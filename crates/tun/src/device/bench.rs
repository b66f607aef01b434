//! Exposes parts of the device, for `crates/bench` alone.

use weft_sched::flow::FlowHasher;

use super::coalesce;
use super::plain_batch::PlainBatch;
use super::writer::Coalescing;
use crate::config::TunOffload;

const BOTH: TunOffload = TunOffload { tcp: true, udp: true };

/// The coalescing that a writer does to a batch before it writes.
pub struct Coalescer {
    batch: PlainBatch,
    coalescer: coalesce::Coalescer,
}

impl Coalescer {
    /// Returns a coalescer that does the same in every run.
    pub fn new(seed: u64) -> Self {
        let coalescing = Coalescing::new(BOTH);
        let batch = PlainBatch::new(1, FlowHasher::with_seed(seed), coalescing.joins());
        Self { batch, coalescer: coalesce::Coalescer::default() }
    }

    /// Stages a packet for the batch. Returns false if the batch is full.
    pub fn stage(&mut self, packet: &[u8]) -> bool {
        let Some(packet) = self.batch.slab.push(packet) else { return false };
        self.batch.stage(packet, |_| 0);
        true
    }

    /// Plans the writes of the batch, gathers the pieces of each and returns the number of writes.
    pub fn coalesce(&mut self) -> usize {
        let Self { batch, coalescer } = self;
        let staged = &batch.staged[0];
        coalescer.plan(&batch.slab, staged, BOTH);
        let mut pieces = Vec::new();
        for index in 0..coalescer.groups().len() {
            pieces.clear();
            coalescer.gather(index, &batch.slab, staged, &mut pieces);
            std::hint::black_box(&pieces);
        }
        coalescer.groups().len()
    }
}
