//! A pair of sockets, which every unix has: two descriptors a thread.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

#[derive(Debug)]
pub(super) struct Descriptor {
    waiting: UnixStream,
    waking: UnixStream,
}

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        let (waiting, waking) = UnixStream::pair()?;
        waiting.set_nonblocking(true)?;
        waking.set_nonblocking(true)?;
        Ok(Self { waiting, waking })
    }

    pub(super) fn wake(&self) -> io::Result<()> {
        match (&self.waking).write(&[1]) {
            // It is readable already.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other.map(drop),
        }
    }

    pub(super) fn clear(&self) {
        let mut buffer = [0; 512];
        while (&self.waiting).read(&mut buffer).is_ok_and(|len| len == buffer.len()) {}
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }
}
