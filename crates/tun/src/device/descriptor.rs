//! A queue of any unix: a descriptor, which poll(2) waits for.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

pub(crate) use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::write_error::WriteError;

/// A descriptor of a queue, which can be handed in.
pub type Descriptor = OwnedFd;

/// What threads and the runtime wait for.
pub trait Pollable: AsFd + AsRawFd {}

impl<T: AsFd + AsRawFd> Pollable for T {}

/// Returns what an error of a write means for most queues.
pub(crate) fn meaning_of(error: Errno) -> WriteError {
    match error {
        Errno::EAGAIN => WriteError::Full,
        Errno::EINVAL => WriteError::Invalid,
        _ => WriteError::Refused,
    }
}

/// Reads once, and again if a signal interrupted the call.
pub(crate) fn read_once(descriptor: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match nix::unistd::read(&descriptor, buffer) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Writes once, and again if a signal interrupted the call.
pub(crate) fn write_once(descriptor: impl AsFd, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
    loop {
        match nix::sys::uio::writev(&descriptor, pieces) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Makes reads and writes fail with EAGAIN instead of waiting.
pub(crate) fn set_nonblocking(descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// Reports whether a read would return at once now, with a packet or an error.
pub(crate) fn is_readable(queue: &impl AsFd) -> bool {
    let mut wait = [PollFd::new(queue.as_fd(), PollFlags::POLLIN)];
    !matches!(poll(&mut wait, PollTimeout::ZERO), Ok(0))
}
