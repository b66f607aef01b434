//! The end of an emulated link inside a namespace: a TAP device, one frame per system call.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use crate::Namespace;
use crate::link;

/// Length of `struct virtio_net_hdr`, which the kernel puts before each frame. It says where a checksum is
/// missing and is copied to the other end unchanged, so that neither end computes one, as on a veth.
pub(super) const HEADER: usize = 10;
/// Length of the Ethernet header: destination, source, VLAN tag and type.
const ETHERNET: usize = 18;
/// Length of the TAP's transmit queue, in packets. Frames in it are not on the link yet, and a full queue
/// would drop them uncounted by the link: this has room for what a sender emits while the pump is not
/// scheduled.
const RING: u32 = 16_384;

mod ioctls {
    use nix::sys::ioctl::ioctl_num_type as Number;

    // The numbers are from `<linux/if_tun.h>`; the types encoded in them differ from the argument types.
    nix::ioctl_write_ptr_bad!(set_iff, libc::TUNSETIFF as Number, libc::ifreq);
    nix::ioctl_write_int_bad!(set_offload, libc::TUNSETOFFLOAD as Number);
}

/// A TAP device, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Tap(File);

impl Tap {
    /// Creates the interface `name` in `namespace`. It is down.
    pub(super) fn open(namespace: &Namespace, name: &str, mtu: u32) -> io::Result<Self> {
        let tap = namespace.run(|| create(name)).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot make the TAP device {name}: {error}"))
        })?;
        link::set_mtu(namespace, name, mtu)?;
        link::set_tx_queue_len(namespace, name, RING)?;
        Ok(tap)
    }

    /// Returns the buffer size for a frame of this MTU with its virtio and Ethernet headers.
    pub(super) fn room(mtu: u32) -> usize {
        HEADER + ETHERNET + mtu as usize
    }

    /// Reads a frame that the kernel sends, virtio header first; `None` if none is pending.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.0.read(buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes a frame to the kernel's receive path, virtio header first.
    ///
    /// # Errors
    /// The kernel refused the frame.
    pub(super) fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.0.write(frame).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn create(name: &str) -> io::Result<Tap> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: ifreq is plain integers and arrays, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is empty or too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the ioctl reads an ifreq, and `request` is one that lives until it returns.
    unsafe { ioctls::set_iff(file.as_raw_fd(), &request) }?;
    // Checksum offload only: with segmentation offload a super-packet would cross the link as one frame.
    // SAFETY: the argument of this ioctl is a number, not a pointer.
    unsafe { ioctls::set_offload(file.as_raw_fd(), libc::TUN_F_CSUM as libc::c_int) }?;
    Ok(Tap(file))
}
