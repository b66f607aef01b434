//! The TUN device of Linux: either each queue has a reader and a writer thread, or the packet thread serves
//! all queues itself (inline).

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

/// A descriptor of a queue, which can be handed in.
pub type Descriptor = std::os::fd::OwnedFd;

/// A TUN device. Dropping it shuts it down, as [`Device::shutdown`].
pub struct Device {
    name: String,
    offload: TunOffload,
    stats: Arc<TunStats>,
    mode: Mode,
}

// A process has one device, so the different sizes of the variants do not matter.
#[allow(clippy::large_enum_variant)]
enum Mode {
    Threads(Threads),
    Inline(Inline),
    Closed(PlainSlab),
}

/// Creates the device of `config`, or adopts its descriptors. Does not change link state, MTU or addresses.
///
/// Needs CAP_NET_ADMIN unless every queue is handed in. Creation is exclusive: it fails if an interface of
/// that name exists, so a queue of another process is never shared. May be called outside of a runtime; a
/// device without threads registers with the runtime that polls it first.
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

    /// Returns a device on descriptors that need not be those of a TUN, such as datagram sockets. Each
    /// message carries a virtio header of 10 bytes and a packet. Unlike a TUN, a socket may be full. Each
    /// descriptor is a queue.
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

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the offloads that the kernel accepted.
    pub fn offload(&self) -> TunOffload {
        self.offload
    }

    /// Returns the counters of the device.
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

impl Tun for Device {
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

    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.mode {
            Mode::Threads(threads) => threads.poll_send_ready(cx),
            Mode::Inline(inline) => inline.poll_send_ready(cx),
            Mode::Closed(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
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

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("offload", &self.offload)
            .finish_non_exhaustive()
    }
}
