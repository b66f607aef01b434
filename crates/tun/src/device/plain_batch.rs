//! A batch of inbound packets, staged for the queues that they are written to.

use weft_sched::flow::{FlowHash, FlowHasher};
use weft_tunnel::{MAX_PACKET, PlainSlab, Plaintext};

/// Bytes of a slab: what four full GRO buffers decrypt to, the usual content of one `recvmmsg`.
pub(super) const SLAB_BYTES: usize = 4 * MAX_PACKET;
/// Slabs of a device: one being filled, one being written, and a spare for each.
pub(super) const SLABS: usize = 4;

/// The flow of packets whose flow nothing asks for.
const NO_FLOW: FlowHash = FlowHash { value: 0, has_ports: false };

/// A packet of a [`PlainBatch`] and its flow, which is computed once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) packet: Plaintext,
    pub(super) flow: FlowHash,
}

/// A slab, and the packets in it for each queue. Shared by the writers of these packets.
#[derive(Debug)]
pub(super) struct PlainBatch {
    /// `None` if nothing asks for flows: there is one queue, and no packets are joined.
    hasher: Option<FlowHasher>,
    pub(super) slab: PlainSlab,
    /// One list per queue, in the order of staging.
    pub(super) staged: Box<[Vec<Staged>]>,
}

impl PlainBatch {
    /// Returns an empty batch for `queues` queues, whose writers join packets or do not.
    pub(super) fn new(queues: usize, hasher: FlowHasher, joins: bool) -> Self {
        let hasher = (queues > 1 || joins).then_some(hasher);
        Self { hasher, slab: PlainSlab::new(SLAB_BYTES), staged: vec![Vec::new(); queues].into() }
    }

    /// Stages a packet of the slab for the queue that `choose` returns for its flow.
    #[inline]
    pub(super) fn stage(&mut self, packet: Plaintext, choose: impl FnOnce(FlowHash) -> u16) {
        let flow = self.hasher.as_ref().map_or(NO_FLOW, |hasher| hasher.hash(self.slab.get(packet)));
        self.staged[usize::from(choose(flow))].push(Staged { packet, flow });
    }

    pub(super) fn clear(&mut self) {
        self.slab.clear();
        self.staged.iter_mut().for_each(Vec::clear);
    }
}
