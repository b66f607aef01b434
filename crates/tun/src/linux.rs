//! A TUN device of Linux: queues with threads of their own, or queues that the runtime serves itself (inline).

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use weft_tunnel::{PlainSlab, Plaintext};

use crate::Tun;
use crate::batch::TunBatch;
use crate::config::{OpenError, TunConfig, TunOffload};
use crate::stats::TunStats;

mod adopt;
#[cfg(feature = "bench-internals")]
pub mod bench;
mod coalesce;
mod dropped;
mod flows;
mod inline;
mod pulse;
mod queue;
mod queue_overload;
mod reader;
mod reorder_guard;
mod threads;
mod vnet_hdr;
mod writer;

pub use adopt::{check_queue, open_queues};
use inline::Inline;
pub use pulse::Pulse;
use queue::Queue;
pub use queue::name_of_queue;
use threads::Threads;
use writer::Coalescing;

/// A descriptor that can be handed in.
pub type Descriptor = std::os::fd::OwnedFd;

/// A TUN device. Dropping it is [`Device::shutdown`].
pub struct Device {
    name: String,
    offload: TunOffload,
    stats: Arc<TunStats>,
    mode: Mode,
}

// One a process: that the variants differ in size does not matter.
#[allow(clippy::large_enum_variant)]
enum Mode {
    Threads(Threads),
    Inline(Inline),
    Closed(PlainSlab),
}

/// Creates the device of `config`, or adopts its descriptors. Link state, MTU and addresses are left as they are.
///
/// Needs CAP_NET_ADMIN unless every queue is handed in. Any existing interface of that name is refused,
/// exclusively: no other process's queue is ever shared. May be called outside of a runtime; a device without
/// threads binds itself to the runtime that polls it first.
pub fn open(config: TunConfig) -> Result<Device, OpenError> {
    let threads = config.threads;
    let opened = queue::open(config)?;
    let failed = |source| OpenError::Io { action: "start threads", name: opened.name.clone(), source };
    Device::new(&opened.name, opened.queues, threads, opened.offload).map_err(failed)
}

impl Device {
    fn new(name: &str, queues: Vec<Queue>, threads: bool, offload: TunOffload) -> io::Result<Self> {
        let stats = Arc::new(TunStats::new(queues.len()));
        let coalescing = Arc::new(Coalescing::new(offload));
        let mode = if queues.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        } else if threads {
            Mode::Threads(Threads::start(name, queues, &coalescing, &stats)?)
        } else {
            Mode::Inline(Inline::new(name, queues, &coalescing, &stats))
        };
        Ok(Self { name: name.to_owned(), offload, stats, mode })
    }

    /// A device on descriptors that need not be a TUN's, such as datagram sockets, which carry a virtio header
    /// of 10 bytes and a packet in each message: unlike a TUN they take only so much. Each descriptor is a
    /// queue.
    #[doc(hidden)]
    pub fn from_descriptors_for_test(
        name: &str,
        descriptors: Vec<Descriptor>,
        threads: bool,
        offload: TunOffload,
    ) -> io::Result<Self> {
        for descriptor in &descriptors {
            queue::set_nonblocking(descriptor.as_fd())?;
        }
        let queues = descriptors.into_iter().map(Queue::with_header).collect();
        Self::new(name, queues, threads, offload)
    }

    /// The name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The offloads that the kernel took.
    pub fn offload(&self) -> TunOffload {
        self.offload
    }

    /// The counters of the device.
    pub fn stats(&self) -> &Arc<TunStats> {
        &self.stats
    }

    /// Asks the threads of the device whether they work.
    pub fn pulse(&self) -> Pulse {
        match &self.mode {
            Mode::Threads(threads) => threads.pulse(),
            Mode::Inline(_) | Mode::Closed(_) => Pulse::default(),
        }
    }

    /// Stops and joins every thread and closes every descriptor; the kernel deletes a device that nobody else
    /// holds. Batches that were taken out stay valid. Afterwards the device is as good as gone.
    pub fn shutdown(&mut self) {
        self.mode = Mode::Closed(PlainSlab::new(0));
    }
}

impl Tun for Device {
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        // Nothing asked for must not look like a device that is gone.
        let max_bytes = max_bytes.max(1);
        match &mut self.mode {
            Mode::Threads(threads) => threads.poll_recv_many(cx, out, max_bytes),
            Mode::Inline(inline) => inline.poll_recv_many(cx, out, max_bytes),
            Mode::Closed(_) => Poll::Ready(Ok(0)),
        }
    }

    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.mode {
            Mode::Threads(threads) => threads.poll_send_ready(cx),
            Mode::Inline(inline) => inline.poll_send_ready(cx),
            Mode::Closed(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Without room before [`Tun::poll_send_ready`] was `Ready`, and after a shutdown.
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

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("offload", &self.offload)
            .finish_non_exhaustive()
    }
}
