//! The receiving sockets of one address family: several on one port, and the kernel chooses one by the address and port
//! that a datagram came from (SO_REUSEPORT, socket(7)).
//!
//! What waits in a socket is one queue for all, and what does not fit is thrown away, whoever sent it. A source that
//! sends more than weft can open fills its own lane; the others are read in turn, and lose nothing to it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};
use weft_tun::Turns;

use super::super::{BindError, RecvBuffers, UdpConfig, UdpStats};
use super::kernel::Release;
use super::recv;
use super::socket::UdpSocket;

/// Sockets of one family. Two busy sources share one with a probability of 1/8.
pub(super) const LANES: usize = 8;
/// More messages than a receive buffer holds: each takes at least 768 bytes of what the kernel counts.
const BACKLOG: usize = 20_000;

/// The sockets of one family on one port; at least one. What goes out is sent by the first.
#[derive(Debug)]
pub(super) struct Lanes {
    sockets: Vec<UdpSocket>,
    turns: Turns,
    /// Messages that may wait in the first socket from before the others were there. Until it was empty once it alone is
    /// read: what a source sent first is handled first.
    backlog: usize,
}

impl Lanes {
    /// Takes over bound sockets of one family and one port, and binds more beside them until there are enough. `None`
    /// without any.
    pub(super) fn from_sockets(
        mut sockets: Vec<Socket>,
        is_v6: bool,
        config: &UdpConfig,
        release: Release,
    ) -> Result<Option<Self>, BindError> {
        let before = sockets.len();
        if let Some(first) = sockets.first() {
            match widen(first, is_v6, LANES.saturating_sub(before)) {
                Ok(more) => sockets.extend(more),
                Err(error) => tracing::debug!(%error, "all sources share one socket"),
            }
        }
        if sockets.is_empty() {
            return Ok(None);
        }
        let backlog = if sockets.len() > before { BACKLOG } else { 0 };
        let open = |socket| UdpSocket::from_socket(socket, is_v6, config, release);
        let sockets = sockets.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let turns = Turns::new(sockets.len());
        Ok(Some(Self { sockets, turns, backlog }))
    }

    /// The socket that sends.
    pub(super) fn first(&self) -> &UdpSocket {
        &self.sockets[0]
    }

    /// All of them, in the order of their numbers.
    pub(super) fn each(&self) -> std::slice::Iter<'_, UdpSocket> {
        self.sockets.iter()
    }

    /// Adds what has arrived, lane after lane, while there is a free buffer; as [`super::super::Udp::poll_recv`].
    pub(super) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &mut RecvBuffers,
        stats: &mut UdpStats,
    ) -> Poll<io::Result<usize>> {
        if self.backlog > 0
            && let Some(filled) = self.recv_backlog(buffers, stats)?
        {
            return Poll::Ready(Ok(filled));
        }
        let Self { sockets, turns, .. } = self;
        turns.begin();
        // Each gets its share of the buffers, or one that is always full would have most of them.
        let share = free(buffers).div_ceil(turns.busy());
        let mut filled = 0;
        while buffers.has_room()
            && let Some(number) = turns.next()
        {
            let before = stats.bytes_received;
            match recv_ready(&sockets[number], cx, buffers, share.min(free(buffers)), stats) {
                Poll::Ready(Ok(more)) => {
                    filled += more;
                    turns.had(number, (stats.bytes_received - before) as usize);
                }
                Poll::Ready(Err(error)) if filled == 0 => return Poll::Ready(Err(error)),
                Poll::Ready(Err(error)) => tracing::debug!(%error, "cannot receive"),
                Poll::Pending => turns.was_empty(number),
            }
        }
        if filled > 0 { Poll::Ready(Ok(filled)) } else { Poll::Pending }
    }

    /// What is left in the first socket, whether the runtime knows of it already or not.
    fn recv_backlog(&mut self, buffers: &mut RecvBuffers, stats: &mut UdpStats) -> io::Result<Option<usize>> {
        let limit = free(buffers);
        match recv::recv(self.first().io.get_ref().as_fd(), buffers, limit, stats) {
            Ok(filled) => {
                self.backlog = if filled < limit { 0 } else { self.backlog.saturating_sub(filled) };
                Ok(Some(filled))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.backlog = 0;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Further descriptors of all of them, in the order of their numbers.
    pub(super) fn try_clone(&self) -> io::Result<Vec<OwnedFd>> {
        self.each().map(UdpSocket::try_clone).collect()
    }
}

fn free(buffers: &RecvBuffers) -> usize {
    RecvBuffers::COUNT - buffers.filled()
}

/// One receive call for at most `limit` messages, if the socket has something.
fn recv_ready(
    socket: &UdpSocket,
    cx: &mut Context<'_>,
    buffers: &mut RecvBuffers,
    limit: usize,
    stats: &mut UdpStats,
) -> Poll<io::Result<usize>> {
    while let Poll::Ready(guard) = socket.io.poll_read_ready(cx) {
        let mut guard = guard?;
        match recv::recv(socket.io.get_ref().as_fd(), buffers, limit, stats) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
            Ok(filled) => {
                // A short count means that the socket is empty: no need to ask once more.
                if filled < limit {
                    guard.clear_ready();
                }
                return Poll::Ready(Ok(filled));
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    Poll::Pending
}

/// So many more sockets on the port of `first`, which nobody else could have bound meanwhile: it was bound alone.
fn widen(first: &Socket, is_v6: bool, count: usize) -> io::Result<Vec<Socket>> {
    let port = first.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?.port();
    let address = if is_v6 {
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
    } else {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
    };
    first.set_reuse_port(true)?;
    let bind = |_| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if is_v6 {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    (0..count).map(bind).collect()
}

#[cfg(test)]
mod tests;
