//! The event loop between a TUN, UDP sockets and a tunnel. It starts no thread: a program chooses the one
//! that it runs on.
//!
//! Slow work runs on other threads, reaches the event loop as a [`Command`], and its results return as a
//! [`Snapshot`].

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc;
use weft_tun::{Tun, TunStats, TunStatsSnapshot};
use weft_tunnel::{Event, Tunnel};
use weft_udp::UdpSockets;

pub mod capture;
mod commands;
mod event_loop;
#[cfg(test)]
mod fake_kernel;
mod inbound;
mod initiation_filter;
mod junk_filter;
mod outbound;
mod parts;
mod siblings;
mod snapshot;
mod timing;

pub use commands::{Command, MovedPeer};
pub use event_loop::EventLoop;
pub use siblings::Siblings;
pub use snapshot::{PacketThread, QueueDepths, SendFailure, Snapshot};
pub use timing::{Histogram, SAMPLED_TURNS, Stage, Times};

/// Returns a runtime for an event loop, on the thread that calls `block_on`. It has no other thread.
///
/// # Errors
/// The system refuses a descriptor.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    // Every turn of the event loop is one task poll. Ask the kernel for readiness after each turn
    // (`event_interval`); otherwise an idle direction waits for up to 61 turns of the busy one.
    tokio::runtime::Builder::new_current_thread().enable_all().event_interval(1).build()
}

/// Returns the event loop over a device with its counters and sockets, with a tunnel without peers. Must be
/// called inside a [`runtime`]. The first event loop of a device reports the counters of all its queues.
pub fn event_loop<T: Tun>(
    mut tunnel: Tunnel,
    tun: T,
    tun_stats: Arc<TunStats>,
    udp: UdpSockets,
    commands: mpsc::Receiver<Command>,
) -> EventLoop<T, UdpSockets, impl Fn() -> Vec<TunStatsSnapshot>> {
    tunnel.calibrate(timing::x25519_time());
    let is_first = tunnel.shard().number() == 0;
    let tun_stats = move || if is_first { tun_stats.queues() } else { Vec::new() };
    EventLoop::new(tunnel, tun, udp, commands, tun_stats)
}

/// The divisor of the available memory that gives the bytes of packets that may wait for sessions.
const STAGING_SHARE: u64 = 64;
const MIN_STAGING_BYTES: u64 = 2 << 20;
const MAX_STAGING_BYTES: u64 = 128 << 20;

/// Returns the number of bytes that may wait for sessions, all peers together: a sixty-fourth of the
/// available memory, between 2 and 128 MiB. 2 MiB if the available memory is unknown.
pub fn staging_bytes(available: Option<u64>) -> usize {
    let bytes = available.map_or(MIN_STAGING_BYTES, |bytes| bytes / STAGING_SHARE);
    usize::try_from(bytes.clamp(MIN_STAGING_BYTES, MAX_STAGING_BYTES)).unwrap_or(usize::MAX)
}

/// Why the event loop ended.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// The TUN device is gone: it was deleted.
    #[error("the TUN device is gone: was the interface deleted?")]
    DeviceGone,
    /// The TUN device cannot be read or written any more.
    #[error("the TUN device failed: {0}")]
    Tun(#[source] io::Error),
    /// The UDP sockets cannot be read any more.
    #[error("the UDP socket failed: {0}")]
    Udp(#[source] io::Error),
    /// The packet thread did not answer.
    #[error("the packet thread has ended")]
    Ended,
}

/// Receives duplicates of the descriptors of new UDP sockets. Called on the thread of the event loop: it must
/// not block.
pub type OnSockets = Box<dyn FnMut(io::Result<Vec<weft_udp::Descriptor>>) + Send>;

/// Receives events of peers. Called on the packet thread: it must not block.
pub type OnEvent = Box<dyn FnMut(Event) + Send>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_packets_take_a_share_of_the_memory_within_bounds() {
        assert_eq!(staging_bytes(None), 2 << 20);
        assert_eq!(staging_bytes(Some(1 << 20)), 2 << 20);
        assert_eq!(staging_bytes(Some(1 << 30)), 16 << 20);
        assert_eq!(staging_bytes(Some(1 << 40)), 128 << 20);
    }
}
