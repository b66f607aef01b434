//! Linux.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// Lets the socket be bound while connections of a daemon before still linger, and before the address is there.
pub(super) fn prepare(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true),
        SocketAddr::V6(_) => socket.set_freebind_v6(true),
    }
}
