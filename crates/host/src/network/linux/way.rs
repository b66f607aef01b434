//! Finds the route to an address with a socket that is connected to it and never sends.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::Way;

/// Returns the route that the routing table chooses for packets with the mark `fw_mark` (0: none) to an
/// address, in the network namespace of this thread.
///
/// # Errors
/// There is no route, or the mark is not permitted.
pub fn way_to(destination: SocketAddr, fw_mark: u32) -> io::Result<Way> {
    let socket = Socket::new(Domain::for_address(destination), Type::DGRAM, Some(Protocol::UDP))?;
    if fw_mark != 0 {
        socket.set_mark(fw_mark)?;
    }
    socket.connect(&destination.into())?;
    let source = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?.ip();
    Ok(Way { source, mtu: mtu_of(&socket, destination.is_ipv6()) })
}

/// Returns the MTU of the path: the route's own, its device's, or the one that an ICMP message reported.
fn mtu_of(socket: &Socket, is_v6: bool) -> Option<u32> {
    let (level, name) =
        if is_v6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `value`, and both live until after the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if result == 0 { u32::try_from(value).ok().filter(|mtu| *mtu > 0) } else { None }
}
