//! Watches the network on macOS and FreeBSD: a routing socket (route(4)) reports addresses, routes and
//! interfaces.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::{NetworkChange, WatchError, rtsock};
use crate::routes::Link;
use crate::routes::bsd::LAYOUT;
use crate::routes::bsd::message::messages;

/// The longest message, in bytes: the kernels write less than 1 KiB.
const MESSAGE: usize = 16 << 10;

/// A routing socket.
pub(super) struct Source {
    socket: File,
    /// The index of weft's device.
    device: Option<u32>,
    buffer: Vec<u8>,
}

impl Source {
    pub(super) fn open(device: Option<&Link>) -> Result<Self, WatchError> {
        let refused = |source| WatchError::Refused { what: "listen to a routing socket", source };
        let socket = open().map_err(refused)?;
        Ok(Self { socket, device: device.map(|link| link.index), buffer: vec![0; MESSAGE] })
    }

    /// Returns the descriptors to wait for.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 1] {
        [self.socket.as_fd()]
    }

    /// Reads a message, if there is one.
    pub(super) fn read(&mut self, _ready: &[bool], mut note: impl FnMut(NetworkChange)) -> io::Result<()> {
        match self.socket.read(&mut self.buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                for message in messages(&self.buffer[..length], LAYOUT) {
                    note(rtsock::change(&message, self.device));
                }
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                note(NetworkChange { missed: true, ..NetworkChange::default() });
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn open() -> io::Result<File> {
    // SAFETY: the call takes three numbers.
    let descriptor = unsafe { libc::socket(libc::PF_ROUTE, libc::SOCK_RAW, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    for (get, set, flag) in
        [(libc::F_GETFD, libc::F_SETFD, libc::FD_CLOEXEC), (libc::F_GETFL, libc::F_SETFL, libc::O_NONBLOCK)]
    {
        // SAFETY: both calls take and return numbers, for a descriptor that is open.
        let result = unsafe {
            let flags = libc::fcntl(socket.as_raw_fd(), get);
            libc::fcntl(socket.as_raw_fd(), set, flags | flag)
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(socket.into())
}
