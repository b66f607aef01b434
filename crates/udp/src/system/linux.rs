//! Linux and Android.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use libc::c_int;
use socket2::{Protocol, SockRef, Socket};

use crate::kernel::Release;
use crate::path_mtu::set_discovery;
pub(crate) use crate::path_mtu::{Paths, let_pass, refuses_too_long};
use crate::sockopt::{get_option, set_option};
use crate::{BindError, PathMtu, SEND_BUFFER_BYTES};

/// Does nothing: a bound port belongs to its socket.
#[allow(clippy::unnecessary_wraps, reason = "on Windows it may fail")]
pub(crate) fn claim_port(_: &Socket) -> io::Result<()> {
    Ok(())
}

/// Reports whether a datagram socket is one of UDP.
pub(crate) fn is_udp(socket: &SockRef<'_>) -> io::Result<bool> {
    socket.protocol().map(|protocol| protocol == Some(Protocol::UDP))
}

/// Reports whether a kill switch of this process lets packets of a socket out: the user who opened it is that
/// of this process, or root.
pub(crate) fn is_of_our_user(socket: &OwnedFd) -> bool {
    let opened_by = nix::sys::stat::fstat(socket).map(|facts| facts.st_uid);
    opened_by.is_ok_and(|user| user == 0 || user == nix::unistd::geteuid().as_raw())
}

/// Sets the mark of the packets sent from now on (SO_MARK); 0 for no mark.
pub(crate) fn set_mark(socket: &Socket, mark: u32) -> Result<(), BindError> {
    // An adopted socket may have the mark already, and setting it needs a privilege.
    if socket.mark().unwrap_or_default() == mark {
        return Ok(());
    }
    socket.set_mark(mark).map_err(|source| BindError::Fwmark { mark, source })
}

/// Makes the errors of routers count as those of the host itself (ip(7), IP_RECVERR).
pub(crate) fn report_errors(socket: &Socket, is_v6: bool) {
    let (level, name) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
    // Without it the most important one counts: that no program has the port.
    let _ = set_option(socket, level, name, 1);
}

/// Sets whether datagrams may be fragmented on their way.
pub(crate) fn set_fragmentation(socket: &Socket, is_v6: bool, path_mtu: PathMtu) -> io::Result<()> {
    set_discovery(socket, is_v6, path_mtu)?;
    if !is_v6 {
        return Ok(());
    }
    // It refuses fragments of this machine whatever the option above says. quinn-udp sets it.
    match set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0) {
        // A system that does not know it (QEMU in user mode) cannot have set it.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        set => set,
    }
}

/// Makes the kernel join received datagrams (UDP_GRO), where that is reliable and known.
pub(crate) fn join_datagrams(socket: &Socket) {
    let joins = Release::running().reports_gro_stride();
    if let Err(error) = set_option(socket, libc::SOL_UDP, libc::UDP_GRO, joins.into()) {
        tracing::debug!(%error, "receiving without GRO");
    }
    // quinn-udp asks for the time of arrival. It costs a clock read a packet, and its ancillary message
    // leaves no room for the traffic class of IPv6.
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0);
}

/// Reports whether the kernel joins received datagrams (UDP_GRO).
pub(crate) fn joins_datagrams(socket: &Socket) -> bool {
    get_option(socket, libc::SOL_UDP, libc::UDP_GRO).is_ok_and(|value| value != 0)
}

/// Enlarges the receive buffer, and the send buffer of a socket that sends.
pub(crate) fn enlarge_buffers(socket: &Socket, receive_bytes: usize, sends: bool) -> io::Result<()> {
    let receive = c_int::try_from(receive_bytes).unwrap_or(c_int::MAX);
    let received = enlarge_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive)?;
    // The sending socket alone warns: the same limits apply to the other sockets.
    if sends {
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

/// Returns the bytes of the receive buffer, without the kernel's doubling; 0 if they cannot be read.
pub(crate) fn receive_buffer_bytes(socket: &Socket) -> u64 {
    buffer_bytes(socket, libc::SO_RCVBUF)
}

/// Returns the bytes of the send buffer, without the kernel's doubling; 0 if they cannot be read.
pub(crate) fn send_buffer_bytes(socket: &Socket) -> u64 {
    buffer_bytes(socket, libc::SO_SNDBUF)
}

fn buffer_bytes(socket: &Socket, option: c_int) -> u64 {
    let bytes = get_option(socket, libc::SOL_SOCKET, option).unwrap_or_default();
    u64::try_from(bytes).unwrap_or_default() / 2
}

/// Returns the number of datagrams that a socket dropped since it was opened: SK_MEMINFO_DROPS of
/// `linux/sock_diag.h`. 0 before Linux 4.12.
pub(crate) fn dropped(socket: &Socket) -> u64 {
    const DROPS: usize = 8;
    // The C library does not define it for Android.
    #[cfg(target_os = "android")]
    const SO_MEMINFO: c_int = 55;
    #[cfg(target_os = "linux")]
    const SO_MEMINFO: c_int = libc::SO_MEMINFO;
    let mut values = [0_u32; DROPS + 1];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `values`, and both live until after the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result == 0 { values[DROPS].into() } else { 0 }
}

/// Reports whether the kernel writes wrong headers for GSO batches of equal segments.
pub(crate) fn mangles_equal_segments() -> bool {
    Release::running().mangles_equal_segments()
}

/// Whether ENOBUFS means that the queue of the interface is full. Here it means that the kernel is out of
/// memory: a full queueing discipline drops silently.
#[cfg_attr(all(target_os = "linux", not(feature = "portable")), expect(dead_code))]
pub(crate) const ENOBUFS_IS_A_FULL_QUEUE: bool = false;
