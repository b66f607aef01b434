//! Opening the sockets: one port for both families, and the options that the packet path relies on.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use socket2::Socket;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::{BindError, UdpConfig};
use crate::bind::failed;
use crate::sockopt::{get_option, set_option};
use crate::system;

/// Settings of the buffers of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// Bytes of the receive buffer.
    pub(super) receive: usize,
    /// Whether it is the sending socket of its family.
    pub(super) sends: bool,
}

/// A bound socket with its options set, registered with the runtime.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    pub(super) io: AsyncFd<Socket>,
}

impl UdpSocket {
    /// Registers a socket that was set up with the runtime.
    pub(super) fn register(socket: Socket) -> Result<Self, BindError> {
        // SAFETY: a `Socket` owns its descriptor, exposes no other descriptor, and closes it only when it is
        // dropped.
        let io = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE | Interest::WRITABLE) }
            .map_err(|error| failed("register the UDP socket with the runtime", error.into()))?;
        Ok(Self { io })
    }

    /// Calls `recv`, which fills at most `limit` buffers, once the socket is readable.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        limit: usize,
        mut recv: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(guard) = self.io.poll_read_ready(cx) {
            let mut guard = guard?;
            match recv() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Ok(filled) => {
                    // A short count means that the socket is empty, so another call is not needed.
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

    /// Reports whether the kernel knows UDP_SEGMENT (Linux 4.18). A kernel that does not know it ignores it,
    /// and would send a whole batch as one datagram.
    pub(crate) fn knows_gso(&self) -> bool {
        get_option(self.io.get_ref(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
    }

    /// Returns the number of datagrams that the kernel dropped since the socket was opened; 0 before Linux
    /// 4.12.
    pub(super) fn dropped(&self) -> u64 {
        system::dropped(self.io.get_ref())
    }

    /// Returns a duplicate of the descriptor.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.io.get_ref().try_clone().map(OwnedFd::from)
    }
}

/// Sets up a bound socket, of IPv6 if `is_v6`.
pub(super) fn configure(
    socket: Socket,
    is_v6: bool,
    buffers: Buffers,
    config: &UdpConfig,
) -> Result<Socket, BindError> {
    set_options(&socket, is_v6, buffers, config).map_err(|source| failed("set up the UDP socket", source))?;
    system::set_mark(&socket, config.fwmark)?;
    Ok(socket)
}

fn set_options(socket: &Socket, is_v6: bool, buffers: Buffers, config: &UdpConfig) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // With DF clear, as in the kernel's WireGuard, the outer packet may be fragmented, on its way and by this
    // machine. A GSO segment still has to fit the MTU of the route.
    system::set_fragmentation(socket, is_v6, config.path_mtu)?;
    let (level, options) = if is_v6 {
        (libc::IPPROTO_IPV6, [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS])
    } else {
        (libc::IPPROTO_IP, [libc::IP_PKTINFO, libc::IP_RECVTOS])
    };
    for name in options {
        set_option(socket, level, name, 1)?;
    }
    system::join_datagrams(socket);
    system::enlarge_buffers(socket, buffers.receive, buffers.sends)
}
