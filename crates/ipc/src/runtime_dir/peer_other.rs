//! getpeereid(3). For a server, this is its user at the time of listen(2).

use std::io;
use std::os::unix::net::UnixStream;

pub(super) fn user(stream: &UnixStream) -> io::Result<u32> {
    Ok(nix::unistd::getpeereid(stream)?.0.as_raw())
}
