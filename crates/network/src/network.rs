//! The network that a proxy carries connections into: the tunnel, or the host's own.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a [`Network`] answers later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A network with TCP, UDP and names. The proxy makes every socket of the tunnel through this trait, so that
/// it does not depend on the kernel's TCP.
pub trait Network: Send + Sync {
    /// Opens a TCP connection.
    fn connect(&self, to: SocketAddr) -> Later<'_, io::Result<Box<dyn Connection>>>;

    /// Listens for TCP connections. Port 0 selects a free port.
    ///
    /// # Errors
    /// When the address is in use, or is not an address of this network.
    fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Makes a UDP socket. Port 0 selects a free port.
    ///
    /// # Errors
    /// Those of [`Self::listen`].
    fn udp(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>>;

    /// Returns the addresses of a name, at least one.
    fn look_up<'a>(&'a self, name: &'a str) -> Later<'a, Result<Vec<IpAddr>, LookUpError>>;

    /// Returns what this network has done so far.
    fn stats(&self) -> Stats;
}

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookUpError {
    /// There is no server to ask.
    #[error(
        "{name} cannot be looked up: there is no DNS server (add DNS = ADDRESS to [Interface] of the file, or \
         give --dns ADDRESS)"
    )]
    NoServers {
        /// The name.
        name: String,
    },
    /// The name does not exist.
    #[error("{name} does not exist")]
    NotFound {
        /// The name.
        name: String,
    },
    /// The name exists, but has no address.
    #[error("{name} has no address")]
    NoAddress {
        /// The name.
        name: String,
    },
    /// No server answered.
    #[error("{name} cannot be looked up: DNS server {server}: {reason}")]
    NoAnswer {
        /// The name.
        name: String,
        /// The server that was asked last.
        server: IpAddr,
        /// What went wrong there.
        reason: String,
    },
}

/// Counters of a [`Network`], since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were opened.
    pub connected: u64,
    /// Connections that could not be opened.
    pub failed: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// UDP sockets that were made.
    pub udp_sockets: u64,
    /// Names that were looked up, those in the cache included.
    pub look_ups: u64,
}

/// One end of a stream: of TCP, or of a Unix socket.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {
    /// Returns the address of this end; `None` if it has no IP address.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// Returns the address of the other end; `None` if it has no IP address.
    fn peer_addr(&self) -> Option<SocketAddr>;

    /// Makes the other end see a reset, and not the end of the stream, when this end is dropped.
    fn abort(&self);

    /// Waits until the other end sends nothing more: it has closed the connection, or its half of it.
    /// Whatever has the connection need not read for that. A connection that cannot tell never says so.
    fn ended(&self) -> Later<'static, ()> {
        Box::pin(pending())
    }

    /// Waits until the connection fails, as by a reset, in the same way.
    fn failed(&self) -> Later<'static, ()> {
        Box::pin(pending())
    }

    /// Has the connection fail when the other end takes nothing of what is sent to it for this time, also
    /// after this end was dropped.
    fn give_up_after(&self, time: Duration) {
        let _ = time;
    }
}

/// Accepts connections.
pub trait Listener: Send + Sync {
    /// Accepts the next connection.
    fn accept(&self) -> Later<'_, io::Result<Box<dyn Connection>>>;

    /// Returns the address that it listens on.
    fn local_addr(&self) -> Option<SocketAddr>;
}

/// A UDP socket.
pub trait Datagrams: Send + Sync {
    /// Receives a datagram, and returns its source. Only one task may wait.
    fn poll_recv(&self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<SocketAddr>>;

    /// Sends a datagram. Only one task may wait.
    fn poll_send(&self, cx: &mut Context<'_>, datagram: &[u8], to: SocketAddr) -> Poll<io::Result<()>>;

    /// Returns the address of the socket.
    ///
    /// # Errors
    /// Those of getsockname(2).
    fn local_addr(&self) -> io::Result<SocketAddr>;
}
