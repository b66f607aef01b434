//! What the systems with BSD sockets have in common.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use libc::c_int;
use socket2::{SockRef, Socket};
use weft_tunnel::Transmit;

use crate::passage::{Advice, Passage};
use crate::sockopt::{get_option, set_option};
use crate::{PathMtu, SEND_BUFFER_BYTES};

/// Does nothing: the errors of a connected socket are told as they are.
pub(crate) fn report_errors(_: &Socket, _: bool) {}

/// The smallest buffer that is tried.
const MIN_BUFFER_BYTES: usize = 64 << 10;

/// Does nothing: a bound port belongs to its socket.
#[allow(clippy::unnecessary_wraps, reason = "on Windows it may fail")]
pub(crate) fn claim_port(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Reports whether a datagram socket is one of UDP. These systems do not tell all. An ICMP socket, the other
/// kind of datagram socket, has no port.
pub(crate) fn is_udp(_: &SockRef<'_>) -> io::Result<bool> {
    Ok(true)
}

/// It does not matter here who opened a socket.
pub(crate) fn is_of_our_user(_: &OwnedFd) -> bool {
    true
}

/// Sets whether datagrams may be fragmented on their way.
pub(crate) fn set_fragmentation(
    socket: &impl std::os::fd::AsRawFd,
    is_v6: bool,
    path_mtu: PathMtu,
) -> io::Result<()> {
    let (level, name) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG) } else { (libc::IPPROTO_IP, libc::IP_DONTFRAG) };
    set_option(socket, level, name, c_int::from(path_mtu == PathMtu::On))
}

/// Reports whether the sockets refuse datagrams that are longer than the MTU of their path.
pub(crate) fn refuses_too_long(path_mtu: PathMtu, _: SocketAddr) -> bool {
    path_mtu == PathMtu::On
}

/// Calls `send` with DF clear, so that the system may fragment the datagrams.
pub(crate) fn let_pass<T>(
    fd: BorrowedFd<'_>,
    destination: SocketAddr,
    _: Passage,
    send: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    set_fragmentation(&fd, destination.is_ipv6(), PathMtu::Off)?;
    let sent = send();
    set_fragmentation(&fd, destination.is_ipv6(), PathMtu::On)?;
    sent
}

/// The MTU of a path is not asked for.
#[derive(Debug, Default)]
pub(crate) struct Paths {}

impl Paths {
    pub(crate) fn advise(&mut self, _: BorrowedFd<'_>, _: &Transmit<'_>) -> Advice {
        Advice::IN_PIECES
    }
}

/// These systems join no datagrams.
pub(crate) fn join_datagrams(_: &Socket) {}

/// These systems join no datagrams.
pub(crate) fn joins_datagrams(_: &Socket) -> bool {
    false
}

/// Enlarges the receive buffer, and the send buffer of a socket that sends. The system refuses what is larger
/// than its limit, so less is asked for until it accepts.
pub(crate) fn enlarge_buffers(socket: &Socket, receive_bytes: usize, sends: bool) -> io::Result<()> {
    let received = halve_until_accepted(receive_bytes, |bytes| socket.set_recv_buffer_size(bytes));
    if received < receive_bytes {
        tracing::warn!(
            bytes = received,
            wanted = receive_bytes,
            "a small UDP buffer loses packets in bursts: raise kern.ipc.maxsockbuf",
        );
    }
    if sends {
        // It limits the size of a datagram. Datagrams wait in the queue of the interface, not here.
        let bytes = usize::try_from(SEND_BUFFER_BYTES).unwrap_or(usize::MAX);
        halve_until_accepted(bytes, |bytes| socket.set_send_buffer_size(bytes));
    }
    Ok(())
}

/// Returns the size that was accepted, or 0 if the buffer stays as it was.
fn halve_until_accepted(wanted: usize, mut set: impl FnMut(usize) -> io::Result<()>) -> usize {
    let mut bytes = wanted;
    while bytes >= MIN_BUFFER_BYTES {
        if set(bytes).is_ok() {
            return bytes;
        }
        bytes /= 2;
    }
    0
}

/// Returns the bytes of the receive buffer; 0 if they cannot be read.
pub(crate) fn receive_buffer_bytes(socket: &Socket) -> u64 {
    buffer_bytes(socket, libc::SO_RCVBUF)
}

/// Returns the bytes of the send buffer; 0 if they cannot be read.
pub(crate) fn send_buffer_bytes(socket: &Socket) -> u64 {
    buffer_bytes(socket, libc::SO_SNDBUF)
}

fn buffer_bytes(socket: &Socket, option: c_int) -> u64 {
    let bytes = get_option(socket, libc::SOL_SOCKET, option).unwrap_or_default();
    u64::try_from(bytes).unwrap_or_default()
}

/// These systems count what did not fit the receive buffers for the whole machine only.
pub(crate) fn dropped(_: &Socket) -> u64 {
    0
}

/// There is no GSO to mangle anything.
pub(crate) fn mangles_equal_segments() -> bool {
    false
}

/// Whether ENOBUFS means that the queue of the interface is full. It is no memory shortage here, and nothing
/// tells when there is room again.
pub(crate) const ENOBUFS_IS_A_FULL_QUEUE: bool = true;
