//! IP packets in and out of the kernel.
//!
//! [`Tun`] is the interface that every platform implements; a platform is a file. Packets come out in
//! [`TunBatch`]es whose slabs are bounded in number, and go in only while [`Tun::poll_send_ready`] says so:
//! nothing here drops a packet for lack of room.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use weft_tunnel::{PlainSlab, Plaintext};

mod batch;
mod config;
pub mod memory;
mod stats;
pub mod thread_guard;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(not(target_os = "linux"))]
use unsupported as platform;

pub use batch::{Slab, SlabHome, TunBatch};
pub use config::{MAX_QUEUES, OpenError, TunConfig, TunOffload};
#[cfg(all(feature = "bench-internals", target_os = "linux"))]
#[doc(hidden)]
pub use linux::bench;
pub use platform::{Descriptor, Device, Pulse, check_queue, name_of_queue, open, open_queues};
pub use stats::{TunStats, TunStatsSnapshot};

/// One TUN device as the packet thread sees it.
pub trait Tun {
    /// Takes batches of packets that the kernel routed into the tunnel, in the order of each flow, until about
    /// `max_bytes` were taken. Gives the number of bytes; `Ok(0)`: the device is gone.
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>>;

    /// Ready once every queue has room for a whole batch: readiness, never a sleep or a drop.
    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The slab to decrypt the next packets into. Call only after [`Self::poll_send_ready`] returned `Ready`,
    /// and flush when its room runs out.
    fn plain_slab(&mut self) -> &mut PlainSlab;

    /// Stages a packet of [`Self::plain_slab`] for the writer of its flow.
    fn send(&mut self, packet: Plaintext) -> io::Result<()>;

    /// Hands each writer what was staged: one item and at most one wake-up a writer. The batch is the
    /// coalescing window. Afterwards [`Self::poll_send_ready`] has to be asked again.
    fn flush(&mut self) -> io::Result<()>;
}
