//! Exposes parts of the device, for `crates/bench` alone.

use weft_sched::flow::FlowHasher;
use weft_tunnel::{PlainSlab, Plaintext};

use super::coalesce;
use crate::config::TunOffload;

/// The coalescing that a writer does to a batch before it writes.
pub struct Coalescer(coalesce::Coalescer);

impl Coalescer {
    /// Returns a coalescer that does the same in every run.
    pub fn new(seed: u64) -> Self {
        Self(coalesce::Coalescer::with_hasher(FlowHasher::with_seed(seed)))
    }

    /// Plans the writes of a batch, gathers the pieces of each and returns the number of writes.
    pub fn coalesce(&mut self, slab: &PlainSlab, packets: &[Plaintext]) -> usize {
        self.0.plan(slab, packets, TunOffload { tcp: true, udp: true });
        let mut pieces = Vec::new();
        for index in 0..self.0.groups().len() {
            pieces.clear();
            self.0.gather(index, slab, packets, &mut pieces);
            std::hint::black_box(&pieces);
        }
        self.0.groups().len()
    }
}
