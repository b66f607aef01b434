//! A queue with a 4-byte address family before each packet, one packet a call: utun of macOS and iOS, and tun
//! of FreeBSD with TUNSIFHEAD.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;

use crate::batch::Slab;
use crate::device::Queue;
use crate::device::descriptor::{read_once, write_once};
use crate::device::queue::{HEADROOM, Read, WriteError, commit_packet, read_room};

/// Bytes of the address family, in network byte order.
pub(crate) const FAMILY: usize = 4;
const IPV4: [u8; FAMILY] = (libc::AF_INET as u32).to_be_bytes();
const IPV6: [u8; FAMILY] = (libc::AF_INET6 as u32).to_be_bytes();

/// A descriptor of such a device, or the device itself if it has to stay open with its descriptor.
#[derive(Debug)]
pub struct FamilyQueue<D> {
    device: D,
}

impl<D: AsFd> FamilyQueue<D> {
    /// Returns the queue of a device whose descriptor is non-blocking. `device` may be a stand-in for a TUN.
    pub(crate) fn new(device: D) -> Self {
        Self { device }
    }
}

impl<D: AsFd> AsFd for FamilyQueue<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl<D: AsFd> AsRawFd for FamilyQueue<D> {
    fn as_raw_fd(&self) -> RawFd {
        self.device.as_fd().as_raw_fd()
    }
}

/// Returns the address family that belongs to a packet; `None` if it is not an IP packet.
pub(crate) fn family_of(packet: &[u8]) -> Option<[u8; FAMILY]> {
    match packet.first()? >> 4 {
        4 => Some(IPV4),
        6 => Some(IPV6),
        _ => None,
    }
}

impl<D> Queue for FamilyQueue<D>
where
    D: AsFd + std::fmt::Debug + Send + Sync + 'static,
{
    fn read(&self, slab: &mut Slab) -> Read {
        // The packet lands where the packets of every queue do, and the family right before it.
        let room = read_room(slab, HEADROOM - FAMILY);
        let len = match read_once(&self.device, room) {
            Ok(0) => return Read::Gone,
            Ok(len) => len,
            // FreeBSD: the interface has no address yet, or is down.
            Err(Errno::EAGAIN | Errno::EHOSTDOWN) => return Read::Empty,
            Err(errno) => {
                tracing::error!(error = errno.desc(), "reading from the TUN failed for good");
                return Read::Gone;
            }
        };
        let Some((family, packet)) = room[..len].split_first_chunk::<FAMILY>() else {
            return Read::Malformed;
        };
        if family_of(packet) != Some(*family) {
            return Read::Malformed;
        }
        let bytes = packet.len();
        commit_packet(slab, bytes)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        let [_, packet, payloads @ ..] = pieces else { return Err(Errno::EINVAL) };
        let family = family_of(packet).ok_or(Errno::EINVAL)?;
        let packet = [IoSlice::new(&family), IoSlice::new(packet)];
        if payloads.is_empty() {
            return write_once(&self.device, &packet);
        }
        write_once(&self.device, &[&packet, payloads].concat())
    }

    fn meaning_of(error: Errno) -> WriteError {
        match error {
            Errno::EAGAIN => WriteError::Full,
            // A full utun has no room for the packet, or the system has no buffer for it. The descriptor
            // stays writable meanwhile.
            Errno::ENOSPC | Errno::ENOBUFS => WriteError::FullUnannounced,
            Errno::EINVAL | Errno::EMSGSIZE => WriteError::Invalid,
            _ => WriteError::Refused,
        }
    }
}
