//! UDP sockets: the interface of the event loop, and the platforms that implement it.
//!
//! Outbound this is the last step, after the event loop took a batch from its transmit queue. Inbound it is
//! the first, before the event loop hands each datagram to the tunnel.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use weft_tunnel::{DropReason, Transmit};

mod recv_buffers;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
pub use linux::Release;
#[cfg(target_os = "linux")]
pub use linux::{Descriptor, UdpSockets, check_socket};
pub use recv_buffers::{Received, RecvBuffers};
#[cfg(not(target_os = "linux"))]
pub use unsupported::{Descriptor, UdpSockets, check_socket};

/// The cost of a received datagram beside its bytes, in bytes: opening so many bytes takes as much time.
pub const DATAGRAM_COST: usize = 512;

/// The cost of `bytes` in `datagrams` datagrams, in bytes.
pub fn cost_of(bytes: usize, datagrams: usize) -> usize {
    bytes + DATAGRAM_COST * datagrams
}

/// One half of all sources, by a hash with a secret key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The hash is in the lower half of its range.
    Lower,
    /// The hash is in the upper half of its range.
    Upper,
}

impl Half {
    /// The sources that are not in this one.
    pub fn other(self) -> Self {
        match self {
            Self::Lower => Self::Upper,
            Self::Upper => Self::Lower,
        }
    }
}

/// Where the datagrams of one listening port go out and come in.
pub trait Udp {
    /// Sends the datagrams of one transmit: at most 64 segments and 65,507 bytes go with one call, in order.
    ///
    /// `Ready(Ok(_))` says how much was accepted, `Pending` that nothing was and that the waker is registered.
    /// `Ready(Err(_))` means that nothing of the transmit can ever be sent.
    fn poll_send(&mut self, cx: &mut Context<'_>, transmit: &Transmit<'_>) -> Poll<Result<Sent, SendError>>;

    /// Adds what has arrived to `buffers`, one of which has to be free, and says how many were filled: at least one.
    ///
    /// The waker is registered only with `Pending`: after `Ready` there may be more. An error is one of the
    /// socket (out of memory, say); the next call goes on.
    fn poll_recv(&mut self, cx: &mut Context<'_>, buffers: &mut RecvBuffers) -> Poll<io::Result<usize>>;

    /// As [`Self::poll_recv`], for handshake messages that arrived apart from data. They may also arrive with data.
    fn poll_recv_handshakes(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
    ) -> Poll<io::Result<usize>> {
        let _ = (cx, buffers);
        Poll::Pending
    }

    /// Notes that datagrams of `source` were authentic: what they cost, as [`Self::poll_recv`] counts. Only such a source is
    /// kept apart from others.
    fn record_authentic(&mut self, source: SocketAddr, cost: usize) {
        let _ = (source, cost);
    }

    /// Has the kernel drop messages to other receiver indices than these, or those to any again with `None`; says whether it
    /// drops some now. More indices than it can tell apart all pass. To be called again before a message with a new index
    /// leaves.
    fn let_pass(&mut self, receivers: Option<&[u32]>) -> bool {
        let _ = receivers;
        false
    }

    /// Has the kernel drop initiations without a cookie unless their source is in `half`, or none again with `None`.
    fn let_half_ask(&mut self, half: Option<Half>) {
        let _ = half;
    }

    /// Moves to another port and to another mark, both or neither, and gives the port in use. What is `None` stays.
    fn rebind(&mut self, port: Option<u16>, fwmark: Option<u32>) -> Result<u16, BindError>;

    /// Further descriptors of the sockets, for whoever keeps them open when this process ends.
    fn descriptors(&self) -> io::Result<Vec<Descriptor>> {
        Ok(Vec::new())
    }

    /// The port in use.
    fn port(&self) -> u16 {
        0
    }

    /// What went through so far.
    fn stats(&self) -> UdpStats;

    /// What the system does for the sockets. Asks it: nothing for every packet.
    fn features(&self) -> UdpFeatures {
        UdpFeatures::default()
    }
}

/// What the kernel accepted of a transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes accepted: whole datagrams, at least one; fewer than all when the socket filled up half-way.
    pub bytes: usize,
    /// The source address that was asked for is not usable any more; it went out from another one.
    pub source_unusable: bool,
    /// Its datagrams were longer than the path carries in one piece, and went in several: the MTU of the path, IP
    /// header included, as far as it was found out. With [`PathMtu::On`] only.
    pub path_mtu: Option<u16>,
}

/// Why a transmit can never be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Its datagrams are longer than UDP or the route carries.
    #[error("the datagram is too long")]
    TooLong,
    /// The kernel refused it: no route, a firewall, no socket of that address family, no memory.
    #[error(transparent)]
    Failed(io::Error),
}

impl SendError {
    /// The reason that its datagrams are counted under.
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
    /// They may (DF is clear), as with WireGuard for Linux: what is too long for a link arrives in pieces, where
    /// nobody drops those.
    #[default]
    Off,
    /// They may not (DF is set): routers answer what is too long for a link, and what fits is found out for each
    /// path. Where their answers do not come back, long packets are lost.
    On,
}

/// What to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// The port of both sockets; 0 for a random one.
    pub port: u16,
    /// The mark of outgoing packets for policy routing and firewalls (SO_MARK); 0 for none. Linux only.
    pub fwmark: u32,
    /// Whether one system call may send many datagrams (UDP GSO), for networks that corrupt them.
    pub gso: bool,
    /// Whether datagrams may be fragmented on their way.
    pub path_mtu: PathMtu,
    /// Bytes that may wait in the kernel in each of the [`RECEIVING_SOCKETS`].
    pub receive_buffer_bytes: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        let receive_buffer_bytes = MAX_RECEIVE_BUFFER_BYTES as usize;
        Self { port: 0, fwmark: 0, gso: true, path_mtu: PathMtu::default(), receive_buffer_bytes }
    }
}

/// Sockets that receive, of both address families together.
#[cfg(target_os = "linux")]
pub const RECEIVING_SOCKETS: usize = linux::RECEIVING_SOCKETS;
/// Sockets that receive, of both address families together.
#[cfg(not(target_os = "linux"))]
pub const RECEIVING_SOCKETS: usize = 2;

/// Bytes of the largest receive buffer that is useful: 10 Gbit/s for 5.6 ms, about the length of a stall of the packet thread.
pub const MAX_RECEIVE_BUFFER_BYTES: u64 = 7 << 20;
/// Bytes that may wait in the kernel in a socket that sends. There is one in each address family.
pub const SEND_BUFFER_BYTES: u64 = MAX_RECEIVE_BUFFER_BYTES;

/// What a socket that was handed in is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// Whether it is the one for IPv6.
    pub is_v6: bool,
    /// Its port.
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
        /// What was to be bound.
        address: SocketAddr,
    },
    /// SO_MARK was refused.
    #[error("cannot set the firewall mark {mark:#x}, which needs CAP_NET_ADMIN: {source}")]
    Fwmark {
        /// The mark that was asked for.
        mark: u32,
        /// What the system answered.
        source: io::Error,
    },
    /// Neither IPv4 nor IPv6 is there.
    #[error("this machine has neither IPv4 nor IPv6")]
    NoAddressFamily,
    /// Anything else.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the system answered.
        source: io::Error,
    },
}

/// What the kernel does for the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpFeatures {
    /// One call may send many datagrams (UDP GSO).
    pub gso: bool,
    /// The kernel joins what arrives (UDP GRO), if both sockets let it.
    pub gro: bool,
    /// Bytes of the smaller receive buffer, without the kernel's own bookkeeping; 0 where it cannot be known.
    pub receive_buffer_bytes: u64,
    /// Bytes of the smaller send buffer.
    pub send_buffer_bytes: u64,
}

/// What went through the sockets since they were opened. Bytes are those of the UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// Bytes of these.
    pub bytes_sent: u64,
    /// System calls that sent at least one datagram.
    pub batches_sent: u64,
    /// How many messages the kernel got, by the datagrams in each: the buckets count those of at most 1, 2, 4,
    /// 8, 16, 32 and 64 that were too many for the bucket before.
    pub batch_segments: [u64; 7],
    /// Transmits sent as single datagrams because the kernel or the path does not take them as one batch.
    pub gso_fallbacks: u64,
    /// Datagrams that arrived and that the kernel threw away, because a receive buffer was full as a rule. Linux only.
    pub receive_overflows: u64,
    /// Datagrams that the kernel dropped because they cannot be messages for this interface, or by [`Udp::let_half_ask`]; several
    /// that it joined count once. Linux only.
    pub junk_dropped: u64,
    /// Datagrams that arrived; several that the kernel joined count each.
    pub datagrams_received: u64,
    /// Bytes of these.
    pub bytes_received: u64,
    /// System calls that received at least one datagram.
    pub recv_calls: u64,
}

impl UdpStats {
    /// Counts one system call that sent `messages` messages of `segments` datagrams each.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code))]
    fn count_sent(&mut self, messages: usize, segments: usize, bytes: usize) {
        let bucket = segments.next_power_of_two().trailing_zeros() as usize;
        self.batch_segments[bucket.min(self.batch_segments.len() - 1)] += messages as u64;
        self.datagrams_sent += (messages * segments) as u64;
        self.bytes_sent += bytes as u64;
        self.batches_sent += 1;
    }
}
