//! A device without threads, which cannot exist on this system: nothing tells the runtime that a ring has
//! packets.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_sched::flow::FlowHasher;
use weft_tunnel::{PlainSlab, Plaintext};

use super::queue::Queue;
use super::shards::Shard;
use super::writer::Coalescing;
use crate::batch::TunBatch;
use crate::flows::FlowQueues;
use crate::stats::TunStats;

/// A device, of which there is none.
pub(super) struct Inline<Q> {
    never: Infallible,
    _queue: std::marker::PhantomData<Q>,
}

impl<Q: Queue> Inline<Q> {
    /// Fails with [`io::ErrorKind::Unsupported`].
    pub(super) fn new(
        _: &str,
        _: &[Arc<Q>],
        _: Option<Shard>,
        _: FlowHasher,
        _: &Arc<Coalescing>,
        _: &TunStats,
    ) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn poll_recv_many(
        &mut self,
        _: &mut Context<'_>,
        _: &mut VecDeque<TunBatch>,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        match self.never {}
    }

    pub(super) fn hand_over(
        &mut self,
        _: &mut VecDeque<TunBatch>,
        _: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        match self.never {}
    }

    pub(super) fn flow_queues(&self) -> Option<FlowQueues> {
        match self.never {}
    }

    pub(super) fn inherit_flow_queues(&mut self, _: &FlowQueues) {
        match self.never {}
    }

    pub(super) fn poll_send_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.never {}
    }

    pub(super) fn packets_taken(&self) -> u64 {
        match self.never {}
    }

    pub(super) fn plain_slab(&mut self) -> &mut PlainSlab {
        match self.never {}
    }

    pub(super) fn send(&mut self, _: Plaintext) -> io::Result<()> {
        match self.never {}
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self.never {}
    }
}
