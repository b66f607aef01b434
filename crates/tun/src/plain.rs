//! A queue of bare packets, one a call: a TUN of Linux without virtio headers, or that of Android.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::batch::Slab;
use crate::device::Queue;
use crate::device::descriptor::{read_once, write_once};
use crate::device::queue::{HEADROOM, Read, commit_packet, read_room};

/// A descriptor of a TUN with IFF_NO_PI alone.
#[derive(Debug)]
pub struct PlainQueue {
    descriptor: OwnedFd,
}

impl PlainQueue {
    /// Returns the queue of a non-blocking descriptor, which may be a stand-in for a TUN.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }
}

impl AsFd for PlainQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for PlainQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl Queue for PlainQueue {
    fn read(&self, slab: &mut Slab) -> Read {
        match read_once(&self.descriptor, read_room(slab, HEADROOM)) {
            Ok(0) | Err(Errno::EBADFD) => Read::Gone,
            Ok(len) => commit_packet(slab, len),
            Err(Errno::EAGAIN) => Read::Empty,
            Err(Errno::EINVAL) => Read::Malformed,
            Err(errno) => {
                tracing::error!(error = errno.desc(), "reading from the TUN failed for good");
                Read::Gone
            }
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        let packet = pieces.get(1..).unwrap_or_default();
        write_once(&self.descriptor, packet)
    }
}
