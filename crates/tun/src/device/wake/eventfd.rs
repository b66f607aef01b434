//! An eventfd(2): one descriptor a thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

#[derive(Debug)]
pub(super) struct Descriptor(EventFd);

impl Descriptor {
    pub(super) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    pub(super) fn wake(&self) -> io::Result<()> {
        self.0.write(1)?;
        Ok(())
    }

    pub(super) fn clear(&self) {
        // An error means that it was cleared before.
        let _ = self.0.read();
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
