//! Reads IP packets from the kernel and writes IP packets to it, through TUN devices.
//!
//! [`Tun`] is the interface that every platform implements; a platform is a file. Packets are read in
//! [`TunBatch`]es with a bounded number of slabs, and written only while [`Tun::poll_send_ready`] is `Ready`:
//! nothing here drops a packet for lack of room.

#![warn(missing_docs)]

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use weft_tunnel::{PlainSlab, Plaintext};

#[cfg(any(target_os = "linux", target_os = "android"))]
mod attached;
mod batch;
mod config;
mod guid;
pub mod memory;
mod stats;
mod sync;

// The device on the packet queues of any system, and the kinds of queues.
mod device;
#[cfg(all(unix, any(test, not(any(target_os = "linux", target_os = "android")))))]
#[cfg_attr(test, allow(unreachable_pub, reason = "used by tests alone on other systems"))]
mod family;
#[cfg_attr(windows, allow(dead_code, reason = "a device with one queue needs a part of it"))]
mod flows;
#[cfg(any(target_os = "linux", target_os = "android"))]
#[cfg_attr(target_os = "linux", allow(unreachable_pub, reason = "Android has no other queue"))]
mod plain;

// The platforms, which create and adopt devices.
#[cfg(target_os = "linux")]
mod linux;
#[cfg(all(unix, not(target_os = "linux")))]
mod single;
#[cfg(windows)]
mod windows;

#[cfg(all(test, target_os = "linux"))]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod back_pressure_tests;

#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(all(unix, not(target_os = "linux")))]
use single as platform;
#[cfg(windows)]
use windows as platform;

pub use batch::{Slab, SlabHome, TunBatch};
pub use config::{DeviceNamespace, OpenError, RING_BYTES, TunConfig, TunOffload};
#[cfg(all(feature = "bench-internals", unix))]
#[doc(hidden)]
pub use device::bench;
pub use device::{Descriptor, Pulse};
pub use flows::FlowQueues;
pub use guid::guid_of;
#[cfg(windows)]
pub use guid::number_of;
pub use platform::{Device, check_queue, name_of_queue, open, open_queues, open_shards};
#[cfg(target_os = "linux")]
pub use platform::{FAR, NEAR, bind_far_end, offload_of};
/// What a device of this platform may have.
pub use platform::{MAX_QUEUES, SUPER_PACKETS};
pub use stats::{TunStats, TunStatsSnapshot};

/// A TUN device, from the side of the packet thread.
pub trait Tun {
    /// Appends batches of packets that the kernel routed into the tunnel to `out`, until about `max_bytes`
    /// bytes were read. The packets of a flow stay in order. Returns the number of bytes; `Ok(0)` means that
    /// the device is gone.
    fn poll_recv_many(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut VecDeque<TunBatch>,
        max_bytes: usize,
    ) -> Poll<io::Result<usize>>;

    /// Hands packets for other packet threads over to them. `shard_of` returns the shard of a packet if it is
    /// another one than that of this device. What remains in `batches` is this shard's own. Call it after
    /// every [`Self::poll_recv_many`], with its batches. Returns how many packets on the wire were dropped
    /// because their thread has taken nothing for a second. A device of one packet thread does nothing.
    fn hand_over(
        &mut self,
        batches: &mut VecDeque<TunBatch>,
        shard_of: impl FnMut(&[u8]) -> Option<u16>,
    ) -> u64 {
        let _ = (batches, shard_of);
        0
    }

    /// Returns the queue of each flow, for another packet thread of the device that flows move to. `None` if
    /// there is one queue, where no flow can leave.
    fn flow_queues(&self) -> Option<FlowQueues> {
        None
    }

    /// Takes over the queues of the flows of another packet thread, so that no packet that is written moves a
    /// flow.
    fn inherit_flow_queues(&mut self, queues: &FlowQueues) {
        let _ = queues;
    }

    /// Polls until a whole batch can be staged. `Pending` means that the waker is registered. The call never
    /// sleeps and never drops a packet.
    fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns the number of packets that the kernel has taken. It also grows while [`Self::poll_send_ready`]
    /// is `Pending`, unless the kernel takes nothing.
    fn packets_taken(&self) -> u64;

    /// Returns the slab to decrypt the next packets into. Call it only after [`Self::poll_send_ready`]
    /// returned `Ready`, and call [`Self::flush`] when its room runs out.
    fn plain_slab(&mut self) -> &mut PlainSlab;

    /// Stages a packet of [`Self::plain_slab`] for the writer of its flow.
    fn send(&mut self, packet: Plaintext) -> io::Result<()>;

    /// Hands the staged packets to their writers: one item and at most one wake-up per writer. The batch is
    /// the coalescing window. Afterwards [`Self::poll_send_ready`] has to be called again.
    fn flush(&mut self) -> io::Result<()>;
}
