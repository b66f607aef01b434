//! Everything but Linux.

use std::io;
use std::net::SocketAddr;

use socket2::Socket;

/// Sets SO_REUSEADDR on Unix only: on Windows that option would let other programs bind the same address.
pub(super) fn prepare(socket: &Socket, _: SocketAddr) -> io::Result<()> {
    if std::env::consts::FAMILY == "unix" { socket.set_reuse_address(true) } else { Ok(()) }
}
