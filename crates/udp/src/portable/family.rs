//! The socket of one address family.

use std::io;
use std::task::{Context, Poll};

use socket2::Socket;

use super::recv;
use super::socket::UdpSocket;
use crate::{BindError, Descriptor, Half, RecvBuffers, UdpConfig, UdpStats, adopt, system};

/// The socket of one address family, which sends and receives everything.
#[derive(Debug)]
pub(crate) struct Family(UdpSocket);

/// The socket of a [`Family`] before it is registered with a runtime.
#[derive(Debug)]
pub(crate) struct BoundFamily {
    socket: Socket,
    is_v6: bool,
    config: UdpConfig,
}

impl BoundFamily {
    /// Takes the first of bound sockets of one family, for one shard. Returns nothing if `sockets` is empty.
    #[expect(clippy::unnecessary_wraps, reason = "on Linux it may fail")]
    pub(crate) fn all(
        sockets: Vec<Socket>,
        is_v6: bool,
        _are_own: bool,
        _shards: usize,
        config: &UdpConfig,
    ) -> Result<Vec<Self>, BindError> {
        let first = sockets.into_iter().take(1);
        Ok(first.map(|socket| Self { socket, is_v6, config: *config }).collect())
    }
}

impl Family {
    /// Sets up the socket and registers it with the runtime.
    pub(crate) fn register(opened: BoundFamily) -> Result<Self, BindError> {
        UdpSocket::from_socket(opened.socket, opened.is_v6, &opened.config).map(Self)
    }

    /// Returns false: the kernel does not choose.
    #[expect(clippy::unused_self, reason = "Linux has a program")]
    pub(crate) fn is_steered(&self) -> bool {
        false
    }

    /// Returns the socket.
    pub(crate) fn first(&self) -> &UdpSocket {
        &self.0
    }

    pub(crate) fn set_mark(&self, mark: u32) -> Result<(), BindError> {
        self.0.with(|socket| system::set_mark(socket, mark))
    }

    /// Reports whether the kernel joins received datagrams.
    pub(crate) fn joins_datagrams(&self) -> bool {
        self.0.with(system::joins_datagrams)
    }

    pub(crate) fn receive_buffer_bytes(&self) -> u64 {
        self.0.with(system::receive_buffer_bytes)
    }

    pub(crate) fn send_buffer_bytes(&self) -> u64 {
        self.0.with(system::send_buffer_bytes)
    }

    /// Returns the number of datagrams that did not fit the receive buffer.
    pub(crate) fn overflows(&self) -> u64 {
        self.0.with(system::dropped)
    }

    pub(crate) fn junk_of_all(&self) -> u64 {
        self.junk_dropped()
    }

    /// Returns 0: nothing filters junk.
    #[expect(clippy::unused_self, reason = "on Linux a socket counts it")]
    pub(crate) fn junk_dropped(&self) -> u64 {
        0
    }

    /// Receives into the free buffers, as [`crate::Udp::poll_recv`].
    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_recv(cx, |socket| recv::recv(socket, buffers, stats))
    }

    /// Receives nothing: handshake messages arrive with data.
    #[expect(clippy::unused_self, reason = "on Linux they have separate sockets")]
    pub(crate) fn poll_recv_handshakes(
        &self,
        _: &mut Context<'_>,
        _: &mut RecvBuffers,
        _: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    /// Returns false: the kernel lets all messages pass.
    #[expect(clippy::unused_self, reason = "Linux has a filter")]
    pub(crate) fn let_pass(&mut self, _: Option<&[u32]>) -> bool {
        false
    }

    /// Does nothing: the kernel lets all messages pass.
    #[expect(clippy::unused_self, reason = "Linux has a filter")]
    pub(crate) fn let_half_ask(&mut self, _: Option<Half>) {}

    /// Returns a duplicate of the descriptor, on systems where a process can take one over.
    pub(crate) fn descriptors(&self) -> io::Result<Vec<Descriptor>> {
        self.0.with(adopt::duplicate).into_iter().collect()
    }
}
