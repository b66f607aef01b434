//! getpeereid(3): for a server, the user that it had when it called listen(2).

use std::io;
use std::os::unix::net::UnixStream;

pub(super) fn user(stream: &UnixStream) -> io::Result<u32> {
    Ok(nix::unistd::getpeereid(stream)?.0.as_raw())
}
