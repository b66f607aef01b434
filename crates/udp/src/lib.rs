//! UDP sockets: the interface for the event loop, and its implementation for each platform.
//!
//! Outbound this is the last step, after the event loop took a batch from its transmit queue. Inbound it is
//! the first, before the event loop hands each datagram to the tunnel.

#![warn(missing_docs)]

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use weft_tunnel::{DropReason, Transmit};

#[cfg_attr(windows, path = "adopt/windows.rs")]
mod adopt;
mod bind;
#[cfg_attr(windows, path = "codes/windows.rs")]
mod codes;
mod fallback;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
mod passage;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod path_mtu;
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
mod portable;
mod probe;
mod recv_buffers;
mod sockets;
#[cfg_attr(windows, path = "sockopt/windows.rs")]
mod sockopt;
mod system;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

pub use adopt::{Descriptor, check_socket};
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use kernel::Release;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
use linux as platform;
pub use platform::{MAX_SHARDS, receiving_sockets};
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
use portable as platform;
pub use probe::Probe;
pub use recv_buffers::{Received, RecvBuffers};
pub use sockets::{ShardSockets, UdpSockets, open_shards};

/// The fixed cost of a received datagram, in bytes: handling it takes as long as opening this many bytes.
pub const DATAGRAM_COST: usize = 512;

/// Returns the cost of `datagrams` datagrams of `bytes` bytes in total, in bytes.
pub fn cost_of(bytes: usize, datagrams: usize) -> usize {
    bytes + DATAGRAM_COST * datagrams
}

/// A half of all sources, divided by a hash with a secret key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The hash is in the lower half of its range.
    Lower,
    /// The hash is in the upper half of its range.
    Upper,
}

impl Half {
    /// Returns the other half.
    pub fn other(self) -> Self {
        match self {
            Self::Lower => Self::Upper,
            Self::Upper => Self::Lower,
        }
    }
}

/// Sends and receives the datagrams of one listening port.
pub trait Udp {
    /// Sends the datagrams of one transmit, in order: at most 64 segments and 65,507 bytes per call.
    ///
    /// `Ready(Ok(_))` reports how much was accepted. `Pending` means that nothing was accepted and that the
    /// waker is registered. `Ready(Err(_))` means that nothing of the transmit can ever be sent.
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>>;

    /// Receives messages into `buffers`, which must have a free buffer ([`RecvBuffers::room`]). Returns the
    /// number of buffers filled, at least 1.
    ///
    /// The waker is registered only with `Pending`: after `Ready` there may be more to receive. An error
    /// concerns the socket (out of memory, for example); the next call continues.
    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>>;

    /// Receives handshake messages that arrived apart from data, as [`Self::poll_recv`]. Handshake messages
    /// may also arrive with data.
    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        let _ = (cx, buffers);
        Poll::Pending
    }

    /// Makes the kernel drop messages with receiver indices other than these; `None` lets all indices pass.
    /// Of several packet threads, each reports its own indices. If there are more indices than the kernel can
    /// distinguish, all of them pass. Returns whether the kernel drops any messages now. Must be called again
    /// before a message with a new index is sent.
    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let _ = receivers;
        false
    }

    /// Makes the kernel drop initiations without a cookie from sources outside of `half`; `None` lets all
    /// pass. It is one rule for all packet threads.
    fn let_half_ask(&mut self, half: Option<Half>) {
        let _ = half;
    }

    /// Changes the port and the firewall mark, both or neither, and returns the port in use. `None` keeps the
    /// current value.
    ///
    /// If several packet threads share the port, none of them changes it alone: see [`Self::replace`].
    fn rebind(&mut self, port: Option<u16>, fwmark: Option<u32>) -> Result<u16, BindError>;

    /// Uses these sockets from now on, with what the old ones counted. Must be called within a tokio runtime
    /// with I/O and time.
    fn replace(&mut self, sockets: ShardSockets) -> Result<(), BindError> {
        let _ = sockets;
        Err(bind::failed("use other UDP sockets", io::ErrorKind::Unsupported.into()))
    }

    /// Returns duplicates of the sockets' descriptors, IPv4 first, for a process that keeps them open after
    /// this process ends. With several packet threads, those of all of them, in order, are the set for
    /// [`open_shards`].
    fn descriptors(&self) -> io::Result<Vec<Descriptor>> {
        Ok(Vec::new())
    }

    /// Returns the port in use.
    fn port(&self) -> u16 {
        0
    }

    /// Returns the number of datagrams that the kernel dropped for all shards of the port, since the sockets
    /// were opened ([`UdpStats::junk_dropped`]). Makes a system call: not for every packet.
    fn junk_of_all(&self) -> u64 {
        self.stats().junk_dropped
    }

    /// Returns the counters of the sockets.
    fn stats(&self) -> UdpStats;

    /// Returns the features of the kernel that the sockets use. Makes system calls: not for every packet.
    fn features(&self) -> UdpFeatures {
        UdpFeatures::default()
    }
}

/// The part of a transmit that the kernel accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes accepted: whole datagrams, at least one. Fewer than the transmit has if the socket became full,
    /// or if the transmit exceeds one call.
    pub bytes: usize,
    /// Whether the requested source address is no longer usable, so that the datagrams left from another
    /// address.
    pub source_unusable: bool,
    /// The MTU of the path, IP header included, if the datagrams were longer and were sent in fragments;
    /// `None` if the MTU was not found out. Only with [`PathMtu::On`].
    pub path_mtu: Option<u16>,
}

/// Why a transmit can never be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The datagrams are longer than UDP or the route allows.
    #[error("the datagram is too long")]
    TooLong,
    /// The kernel refused the transmit: no route, a firewall, no socket of that address family, no memory.
    #[error(transparent)]
    Failed(io::Error),
}

impl SendError {
    /// Returns the reason under which the datagrams are counted.
    pub fn drop_reason(&self) -> DropReason {
        match self {
            Self::TooLong => DropReason::DatagramTooLong,
            Self::Failed(_) => DropReason::UdpSendFailed,
        }
    }
}

/// Whether datagrams may be fragmented on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathMtu {
    /// They may (DF is clear), as with WireGuard for Linux. A datagram that is too long for a link arrives in
    /// fragments, unless the network drops fragments.
    #[default]
    Off,
    /// They may not (DF is set). Routers report datagrams that are too long for a link, and the MTU of each
    /// path is found out. If the reports do not come back, long datagrams are lost.
    On,
}

/// The configuration of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The port of the sockets; 0 for a random port.
    pub port: u16,
    /// The mark of outgoing packets for policy routing and firewalls: SO_MARK, on FreeBSD SO_USER_COOKIE, and
    /// no other value on Apple's systems and Windows; 0 for none.
    pub fwmark: u32,
    /// Whether one system call may send many datagrams (UDP GSO). Set it to false for networks that corrupt
    /// such datagrams.
    pub gso: bool,
    /// Whether datagrams may be fragmented on their way.
    pub path_mtu: PathMtu,
    /// Bytes that may wait in the kernel in each of the [`receiving_sockets`].
    pub receive_buffer_bytes: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        let receive_buffer_bytes = MAX_RECEIVE_BUFFER_BYTES as usize;
        Self { port: 0, fwmark: 0, gso: true, path_mtu: PathMtu::default(), receive_buffer_bytes }
    }
}

/// The largest useful receive buffer, in bytes: 10 Gbit/s for 5.9 ms, about the length of a stall of the
/// packet thread.
pub const MAX_RECEIVE_BUFFER_BYTES: u64 = 7 << 20;
/// The share of the memory that may wait in the kernel in all receiving sockets together.
const RECEIVE_SHARE: u64 = 8;
/// Linux gives a socket that asks for nothing about as much.
const MIN_RECEIVE_BUFFER_BYTES: u64 = 256 << 10;
/// Bytes that may wait in the kernel in a sending socket. Each address family has one sending socket.
pub const SEND_BUFFER_BYTES: u64 = MAX_RECEIVE_BUFFER_BYTES;

/// Properties of a socket that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// Whether it is an IPv6 socket.
    pub is_v6: bool,
    /// The port that it is bound to.
    pub port: u16,
}

/// Why the sockets could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket has the port.
    #[error(
        "port {} is in use by another program (cannot bind {address}); \
         choose another ListenPort, or 0 for a random one",
        .address.port()
    )]
    PortInUse {
        /// The address that could not be bound.
        address: SocketAddr,
    },
    /// SO_MARK was refused.
    #[error("cannot set the firewall mark {mark:#x}, which needs CAP_NET_ADMIN: {source}")]
    Fwmark {
        /// The requested mark.
        mark: u32,
        /// The error of the system.
        source: io::Error,
    },
    /// The system knows no marks of packets.
    #[error("FwMark = {mark:#x} is not available on {system}: packets have no mark there")]
    FwmarkUnavailable {
        /// The requested mark.
        mark: u32,
        /// The name of the system.
        system: &'static str,
    },
    /// The machine has neither IPv4 nor IPv6.
    #[error("this machine has neither IPv4 nor IPv6")]
    NoAddressFamily,
    /// Any other error of the system.
    #[error("cannot {what}: {source}{}", advice(.source))]
    Io {
        /// The step that failed.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if cfg!(target_os = "linux") => {
            "; a port below 1024 needs CAP_NET_BIND_SERVICE: run as root, or give the unit of systemd a drop-in with \
             CapabilityBoundingSet= and AmbientCapabilities= of CAP_NET_ADMIN CAP_NET_BIND_SERVICE, or choose a \
             ListenPort from 1024 on"
        }
        _ => "",
    }
}

/// Features of the kernel that the sockets use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpFeatures {
    /// Whether one call may send many datagrams (UDP GSO).
    pub gso: bool,
    /// Whether the kernel joins received datagrams (UDP GRO), on all sockets.
    pub gro: bool,
    /// Whether the kernel gives each message to the packet thread of its receiver index; always true with one
    /// packet thread. Otherwise it chooses by source.
    pub steered: bool,
    /// Bytes of the smallest receive buffer for data, without the kernel's own bookkeeping; 0 if it is not
    /// known.
    pub receive_buffer_bytes: u64,
    /// Bytes of the smallest send buffer among the sending sockets.
    pub send_buffer_bytes: u64,
    /// Bytes of the receive buffer that was asked for ([`UdpConfig::receive_buffer_bytes`]).
    pub wanted_receive_buffer_bytes: u64,
    /// Bytes of the send buffer that was asked for.
    pub wanted_send_buffer_bytes: u64,
}

/// Returns the bytes that may wait in each of the [`receiving_sockets`] of a process, for its memory and its
/// number of shards, between 256 KiB and 7 MiB.
///
/// All sockets full, those of both address families and as the kernel counts (twice as much, for its own
/// bookkeeping), take at most an eighth of the memory if that is so much: 24 MiB with one shard, and 16 MiB
/// more for each further shard. All UDP sockets of a machine may take three sixteenths together (udp_mem of
/// udp(7)), and other programs have sockets too.
pub fn receive_buffer_bytes(total_memory: Option<u64>, shards: usize) -> usize {
    let bytes = total_memory.map_or(MAX_RECEIVE_BUFFER_BYTES, |total| {
        total / (2 * RECEIVE_SHARE * receiving_sockets(shards) as u64)
    });
    usize::try_from(bytes.clamp(MIN_RECEIVE_BUFFER_BYTES, MAX_RECEIVE_BUFFER_BYTES)).unwrap_or(usize::MAX)
}

/// Counters of the sockets since they were opened. Bytes are those of UDP payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// Bytes of these datagrams.
    pub bytes_sent: u64,
    /// System calls that sent at least one datagram.
    pub batches_sent: u64,
    /// Histogram of the messages passed to the kernel, by the number of datagrams in each. The upper limits
    /// of the buckets are 1, 2, 4, 8, 16, 32 and 64 datagrams.
    pub batch_segments: [u64; 7],
    /// Transmits sent as single datagrams because the kernel or the path does not accept them as one batch.
    pub gso_fallbacks: u64,
    /// Received datagrams that the kernel dropped, usually because a receive buffer was full. Linux and
    /// Android only.
    pub receive_overflows: u64,
    /// Datagrams that the kernel dropped because they cannot be messages for this interface, or because of
    /// [`Udp::let_half_ask`]. Datagrams that the kernel joined count once. Linux only. Of several packet
    /// threads, the first counts them for all.
    pub junk_dropped: u64,
    /// Datagrams received. Datagrams that the kernel joined count each.
    pub datagrams_received: u64,
    /// Bytes of these datagrams.
    pub bytes_received: u64,
    /// System calls that received at least one datagram.
    pub recv_calls: u64,
}

impl UdpStats {
    /// Counts one system call that sent `messages` messages of `segments` datagrams each.
    fn count_sent(&mut self, messages: usize, segments: usize, bytes: usize) {
        let bucket = segments.next_power_of_two().trailing_zeros() as usize;
        self.batch_segments[bucket.min(self.batch_segments.len() - 1)] += messages as u64;
        self.datagrams_sent += (messages * segments) as u64;
        self.bytes_sent += bytes as u64;
        self.batches_sent += 1;
    }
}
