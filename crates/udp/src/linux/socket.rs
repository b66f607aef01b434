//! Opening the sockets: one port for both families, and the options that the packet path relies on.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::task::{Context, Poll};

use libc::c_int;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::{BindError, PathMtu, UdpConfig};
use super::kernel::Release;
use crate::SEND_BUFFER_BYTES;

/// How often a random port is tried until it is free for both IPv4 and IPv6.
const RANDOM_PORT_ATTEMPTS: usize = 16;

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
pub(super) struct UdpSocket {
    pub(super) io: AsyncFd<Socket>,
}

impl UdpSocket {
    /// Sets up a bound socket, of IPv6 if `is_v6`, and registers it with the runtime.
    pub(super) fn from_socket(
        socket: Socket,
        is_v6: bool,
        buffers: Buffers,
        config: &UdpConfig,
        release: Release,
    ) -> Result<Self, BindError> {
        let fwmark = config.fwmark;
        // An adopted socket may have a mark already.
        let is_marked = socket.mark().unwrap_or_default() == fwmark;
        configure(&socket, is_v6, buffers, config.path_mtu, release)
            .map_err(|source| failed("set up the UDP socket", source))?;
        if !is_marked {
            socket.set_mark(fwmark).map_err(|source| BindError::Fwmark { mark: fwmark, source })?;
        }
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
    pub(super) fn knows_gso(&self) -> bool {
        get_option(self.io.get_ref(), libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
    }

    /// Reports whether the kernel joins received datagrams (UDP_GRO).
    pub(super) fn joins_datagrams(&self) -> bool {
        get_option(self.io.get_ref(), libc::SOL_UDP, libc::UDP_GRO).is_ok_and(|value| value != 0)
    }

    pub(super) fn receive_buffer_bytes(&self) -> u64 {
        buffer_bytes(self.io.get_ref(), libc::SO_RCVBUF)
    }

    pub(super) fn send_buffer_bytes(&self) -> u64 {
        buffer_bytes(self.io.get_ref(), libc::SO_SNDBUF)
    }

    /// Returns the number of datagrams that the kernel dropped since the socket was opened; 0 before Linux
    /// 4.12.
    pub(super) fn dropped(&self) -> u64 {
        dropped(self.io.get_ref()).unwrap_or_default().into()
    }

    /// Sets the mark of the packets sent from now on (SO_MARK); 0 for no mark.
    pub(super) fn set_mark(&self, fwmark: u32) -> io::Result<()> {
        self.io.get_ref().set_mark(fwmark)
    }

    /// Returns a duplicate of the descriptor.
    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        self.io.get_ref().try_clone().map(OwnedFd::from)
    }

    /// Returns the port that the socket is bound to.
    pub(super) fn local_port(&self) -> Option<u16> {
        local_port(self.io.get_ref()).ok()
    }
}

/// Binds an IPv4 and an IPv6 socket to all addresses and one port. At least one of the two is `Some`.
pub(super) fn bind_both(config: &UdpConfig) -> Result<(Option<Socket>, Option<Socket>), BindError> {
    let mut attempts = if config.port == 0 { RANDOM_PORT_ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        match bind_once(config.port) {
            Err(BindError::PortInUse { .. }) if attempts > 0 => {}
            result => return result,
        }
    }
}

fn bind_once(port: u16) -> Result<(Option<Socket>, Option<Socket>), BindError> {
    let v4 = bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
    let port = match &v4 {
        Some(socket) => local_port(socket).map_err(|source| failed("read the UDP port", source))?,
        None => port,
    };
    let v6 = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    if v4.is_none() && v6.is_none() {
        return Err(BindError::NoAddressFamily);
    }
    Ok((v4, v6))
}

/// Returns a socket bound to `address`; `None` if the machine does not have the address family.
pub(super) fn bind(address: SocketAddr) -> Result<Option<Socket>, BindError> {
    let bound =
        Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).and_then(|socket| {
            if address.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            socket.bind(&address.into())?;
            Ok(socket)
        });
    match bound {
        Ok(socket) => Ok(Some(socket)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EADDRINUSE) => Err(BindError::PortInUse { address }),
            Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL) => {
                let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
                tracing::warn!(%error, "no {family} on this machine: peers are reached without it");
                Ok(None)
            }
            _ => Err(failed(&format!("bind {address}"), error)),
        },
    }
}

fn configure(
    socket: &Socket,
    is_v6: bool,
    buffers: Buffers,
    path_mtu: PathMtu,
    release: Release,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // With DF clear, as in the kernel's WireGuard, the outer packet may be fragmented, on its way and by this
    // machine. A GSO segment still has to fit the MTU of the route.
    let (level, name, value) = path_mtu.option(is_v6);
    set_option(socket, level, name, value)?;
    let options = if is_v6 {
        [(libc::IPV6_RECVPKTINFO, 1), (libc::IPV6_RECVTCLASS, 1)]
    } else {
        [(libc::IP_PKTINFO, 1), (libc::IP_RECVTOS, 1)]
    };
    for (name, value) in options {
        set_option(socket, level, name, value)?;
    }
    if release.reports_gro_stride()
        && let Err(error) = set_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
    {
        tracing::debug!(%error, "receiving without GRO");
    }
    let receive = c_int::try_from(buffers.receive).unwrap_or(c_int::MAX);
    let received = enlarge_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive)?;
    // The sending socket alone warns: the same limits apply to the other sockets.
    if buffers.sends {
        let send = c_int::try_from(SEND_BUFFER_BYTES).unwrap_or(c_int::MAX);
        let sent = enlarge_buffer(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send)?;
        warn_if_small(received, receive, "net.core.rmem_max");
        warn_if_small(sent, send, "net.core.wmem_max");
    }
    Ok(())
}

/// Enlarges a buffer and returns its size. Without CAP_NET_ADMIN the kernel limits the size to a sysctl
/// without an error, so there is nothing to halve and retry.
fn enlarge_buffer(socket: &Socket, force: c_int, plain: c_int, wanted: c_int) -> io::Result<c_int> {
    if set_option(socket, libc::SOL_SOCKET, force, wanted).is_ok() {
        return Ok(wanted);
    }
    set_option(socket, libc::SOL_SOCKET, plain, wanted)?;
    // The kernel doubles the value for its own bookkeeping.
    Ok(get_option(socket, libc::SOL_SOCKET, plain)? / 2)
}

fn warn_if_small(bytes: c_int, wanted: c_int, limit: &str) {
    if bytes < wanted {
        tracing::warn!(
            bytes,
            wanted,
            "a small UDP buffer loses packets in bursts: raise {limit}, or grant CAP_NET_ADMIN",
        );
    }
}

/// Returns the size of a buffer, without the kernel's doubling of the requested size; 0 if it cannot be read.
fn buffer_bytes(socket: &Socket, option: c_int) -> u64 {
    let bytes = get_option(socket, libc::SOL_SOCKET, option).unwrap_or_default();
    u64::try_from(bytes).unwrap_or_default() / 2
}

/// Returns the number of datagrams that a socket dropped: SK_MEMINFO_DROPS of `linux/sock_diag.h`.
fn dropped(socket: &Socket) -> io::Result<u32> {
    const DROPS: usize = 8;
    let mut values = [0_u32; DROPS + 1];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `values`, and both live until after the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { Ok(values[DROPS]) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn failed(what: &str, source: io::Error) -> BindError {
    BindError::Io { what: what.to_owned(), source }
}

fn local_port(socket: &Socket) -> io::Result<u16> {
    let address = socket.local_addr()?.as_socket();
    address.map(|address| address.port()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

pub(super) fn set_option(socket: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option value is one int, which lives until after the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn get_option(socket: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and both live until after the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
