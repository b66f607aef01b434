//! Everything but Linux.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// On Windows the option that Unix systems call so would let others take the address as well.
pub(super) fn prepare(socket: &Socket, _: SocketAddr) -> io::Result<()> {
    if std::env::consts::FAMILY == "unix" { socket.set_reuse_address(true) } else { Ok(()) }
}
