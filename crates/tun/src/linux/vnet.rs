//! A queue with a virtio header before each packet, which says what offload work is left on it.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::batch::Slab;
use crate::device::Queue;
use crate::device::descriptor::{read_once, write_once};
use crate::device::queue::{HEADROOM, Read, read_room};
use crate::device::vnet_hdr::{self, VNET_HDR};

/// A descriptor of a TUN with IFF_VNET_HDR.
#[derive(Debug)]
pub(crate) struct VnetQueue {
    descriptor: OwnedFd,
}

impl VnetQueue {
    /// Returns the queue of a non-blocking descriptor, which may be a stand-in for a TUN.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }
}

impl AsFd for VnetQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for VnetQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl Queue for VnetQueue {
    fn read(&self, slab: &mut Slab) -> Read {
        let room = read_room(slab, HEADROOM - VNET_HDR);
        let len = match read_once(&self.descriptor, room) {
            Ok(0) => return Read::Gone,
            Ok(len) => len,
            Err(Errno::EAGAIN) => return Read::Empty,
            // The kernel cannot describe the packet in a virtio header.
            Err(Errno::EINVAL) => return Read::Malformed,
            Err(Errno::EBADFD) => return Read::Gone,
            Err(errno) => {
                tracing::error!(error = errno.desc(), "reading from the TUN failed for good");
                return Read::Gone;
            }
        };
        let Some((header, packet)) = room[..len].split_first_chunk::<VNET_HDR>() else {
            return Read::Malformed;
        };
        let Ok((offload, segments)) = vnet_hdr::decode(header, packet) else {
            return Read::Malformed;
        };
        let bytes = packet.len();
        if slab.commit(HEADROOM, bytes, offload) {
            Read::Packet { bytes: bytes as u64, segments }
        } else {
            Read::Malformed
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        write_once(&self.descriptor, pieces)
    }
}
