//! getpeereid(3): of a server, the user that it was when it began to listen.

use std::io;
use std::os::unix::net::UnixStream;

pub(super) fn user(stream: &UnixStream) -> io::Result<u32> {
    Ok(nix::unistd::getpeereid(stream)?.0.as_raw())
}
