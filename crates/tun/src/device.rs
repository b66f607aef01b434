//! The TUN device, on the packet queues of any system ([`Queue`]): either each queue has a reader and a
//! writer thread, or the packet thread serves all queues itself (inline).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_sched::flow::FlowHasher;
use weft_tunnel::{PlainSlab, Plaintext};

use crate::Tun;
use crate::batch::TunBatch;
use crate::config::{OpenError, TunOffload};
use crate::flows::FlowQueues;
use crate::stats::TunStats;

#[cfg(unix)]
mod alarm;
mod backoff;
#[cfg(all(feature = "bench-internals", unix))]
pub mod bench;
mod coalesce;
#[cfg_attr(windows, path = "device/descriptor/windows.rs")]
pub(crate) mod descriptor;
#[cfg_attr(windows, path = "device/inline/windows.rs")]
mod inline;
mod plain_batch;
mod pulse;
pub(crate) mod queue;
mod reader;
#[cfg_attr(windows, allow(dead_code, reason = "a device with one queue needs a part of it"))]
mod shards;
mod threads;
pub(crate) mod vnet_hdr;
#[cfg_attr(windows, path = "device/wake/windows.rs")]
mod wake;
mod write_error;
mod writer;

#[cfg(target_os = "linux")]
pub(crate) use coalesce::MAX_TCP_SEGMENTS;
pub use descriptor::Descriptor;
use inline::Inline;
pub use pulse::Pulse;
pub(crate) use queue::Queue;
use shards::Shard;
use threads::Threads;
use writer::Coalescing;

/// A TUN device. Dropping it shuts it down, as `shutdown` does.
pub struct Device<Q: Queue> {
    name: String,
    offload: TunOffload,
    stats: Arc<TunStats>,
    mode: Mode<Q>,
}

// A process has one device, so the different sizes of the variants do not matter.
#[allow(clippy::large_enum_variant)]
enum Mode<Q: Queue> {
    Threads(Threads<Q>),
    Inline(Inline<Q>),
    Closed(PlainSlab),
}

/// What a platform has opened.
pub(crate) struct OpenDevice<Q> {
    /// At least one queue.
    pub(crate) queues: Vec<Q>,
    pub(crate) name: String,
    /// The offloads that the system accepted.
    pub(crate) offload: TunOffload,
}

#[cfg(any(test, not(target_os = "linux")))]
impl<Q> OpenDevice<Q> {
    /// Returns what a device without offloads has: one queue.
    pub(crate) fn without_offload(name: String, queue: Q) -> Self {
        Self { queues: vec![queue], name, offload: TunOffload::default() }
    }
}

impl<Q: Queue> Device<Q> {
    /// Returns the device of what was opened. May be called outside of a runtime; a device without threads
    /// registers with the runtime that polls it first.
    pub(crate) fn start(opened: OpenDevice<Q>, threads: bool) -> Result<Self, OpenError> {
        let name = opened.name.clone();
        Self::new(opened, threads).map_err(|source| OpenError::Io { action: "start threads", name, source })
    }

    /// As [`Self::start`], for several packet threads.
    #[cfg(target_os = "linux")]
    pub(crate) fn start_several(
        opened: OpenDevice<Q>,
        threads: bool,
        shards: usize,
    ) -> Result<Vec<Self>, OpenError> {
        let name = opened.name.clone();
        Self::several(opened, threads, shards).map_err(|source| OpenError::Io {
            action: "start several packet threads",
            name,
            source,
        })
    }

    pub(crate) fn new(opened: OpenDevice<Q>, threads: bool) -> io::Result<Self> {
        let device = Self::several(opened, threads, 1)?.pop();
        device.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Returns what was opened as one device for each packet thread. There must be a queue for each, and no
    /// threads of the device beside several.
    pub(crate) fn several(opened: OpenDevice<Q>, threads: bool, shards: usize) -> io::Result<Vec<Self>> {
        let OpenDevice { queues, name, offload } = opened;
        let count = queues.len();
        if count < shards.max(1) || shards > 1 && threads {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let stats = Arc::new(TunStats::new(count));
        let (coalescing, hasher) = (Arc::new(Coalescing::new(offload)), FlowHasher::random());
        let device = |mode| Self { name: name.clone(), offload, stats: Arc::clone(&stats), mode };
        if threads {
            let threads = Threads::start(&name, queues, hasher, &coalescing, &stats)?;
            return Ok(vec![device(Mode::Threads(threads))]);
        }
        let queues: Vec<_> = queues.into_iter().map(Arc::new).collect();
        let inline = |shard| Inline::new(&name, &queues, shard, hasher, &coalescing, &stats);
        if shards < 2 {
            return Ok(vec![device(Mode::Inline(inline(None)?))]);
        }
        let shards = Shard::several(count, shards).into_iter();
        shards.map(|shard| Ok(device(Mode::Inline(inline(Some(shard))?)))).collect()
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offloads that the kernel accepted.
    pub fn offload(&self) -> TunOffload {
        self.offload
    }

    /// Returns the counters of the device: of every queue, whichever packet thread reads it. The devices of
    /// several packet threads return the same counters.
    pub fn stats(&self) -> &Arc<TunStats> {
        &self.stats
    }

    /// Returns a [`Pulse`], which asks the threads of the device whether they work. A device without threads
    /// has none to ask.
    pub fn pulse(&self) -> Pulse {
        match &self.mode {
            Mode::Threads(threads) => threads.pulse(),
            Mode::Inline(_) | Mode::Closed(_) => Pulse::default(),
        }
    }

    /// Stops and joins every thread and closes every descriptor. The kernel deletes the device unless another
    /// process holds a queue of it. Batches that were read stay valid. Afterwards [`Tun::poll_recv_many`]
    /// reports that the device is gone, and writing fails.
    pub fn shutdown(&mut self) {
        self.mode = Mode::Closed(PlainSlab::new(0));
    }
}

impl<Q: Queue> Tun for Device<Q> {
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        // With 0, the result would be `Ok(0)`, which means that the device is gone.
        let max_bytes = max_bytes.max(1);
        match &mut self.mode {
            Mode::Threads(threads) => threads.poll_recv_many(cx, out, max_bytes),
            Mode::Inline(inline) => inline.poll_recv_many(cx, out, max_bytes),
            Mode::Closed(_) => Poll::Ready(Ok(0)),
        }
    }

    fn hand_over(
        &mut self,
        batches: &mut VecDeque<TunBatch>,
        shard_of: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        match &mut self.mode {
            Mode::Inline(inline) => inline.hand_over(batches, shard_of),
            Mode::Threads(_) | Mode::Closed(_) => 0,
        }
    }

    fn flow_queues(&self) -> Option<FlowQueues> {
        match &self.mode {
            Mode::Inline(inline) => inline.flow_queues(),
            Mode::Threads(_) | Mode::Closed(_) => None,
        }
    }

    fn inherit_flow_queues(&mut self, queues: &FlowQueues) {
        match &mut self.mode {
            Mode::Inline(inline) => inline.inherit_flow_queues(queues),
            Mode::Threads(_) | Mode::Closed(_) => {}
        }
    }

    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.mode {
            Mode::Threads(threads) => threads.poll_send_ready(cx),
            Mode::Inline(inline) => inline.poll_send_ready(cx),
            Mode::Closed(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn packets_taken(&self) -> u64 {
        match &self.mode {
            Mode::Inline(inline) => inline.packets_taken(),
            Mode::Threads(_) | Mode::Closed(_) => {
                self.stats.each().map(|queue| queue.inbound.packets_written.get()).sum()
            }
        }
    }

    /// Returns the slab. It has no room after a shutdown, and may have none before [`Tun::poll_send_ready`]
    /// was `Ready`.
    fn plain_slab(&mut self) -> &mut PlainSlab {
        match &mut self.mode {
            Mode::Threads(threads) => threads.plain_slab(),
            Mode::Inline(inline) => inline.plain_slab(),
            Mode::Closed(no_slab) => no_slab,
        }
    }

    fn send(&mut self, packet: Plaintext) -> io::Result<()> {
        match &mut self.mode {
            Mode::Threads(threads) => threads.send(packet),
            Mode::Inline(inline) => inline.send(packet),
            Mode::Closed(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.mode {
            Mode::Threads(threads) => threads.flush(),
            Mode::Inline(inline) => inline.flush(),
            Mode::Closed(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl<Q: Queue> std::fmt::Debug for Device<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("offload", &self.offload)
            .finish_non_exhaustive()
    }
}
