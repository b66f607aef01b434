//! Linux.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// Allows binding while connections of a previous daemon linger, and before the machine has the address.
pub(super) fn prepare(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true),
        SocketAddr::V6(_) => socket.set_freebind_v6(true),
    }
}
