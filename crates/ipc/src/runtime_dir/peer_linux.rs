//! SO_PEERCRED (unix(7)). For a server, this is its user at the time of listen(2).

use std::io;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt};

pub(super) fn user(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, sockopt::PeerCredentials)?.uid())
}
