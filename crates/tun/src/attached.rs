//! What the kernel tells of a descriptor of a TUN, on Linux and Android.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;

// The number is that of <linux/if_tun.h>; the type in it is not the type that is passed.
nix::ioctl_read_bad!(get_iff, libc::TUNGETIFF as nix::sys::ioctl::ioctl_num_type, libc::ifreq);

/// What is wrong with a queue that [`has_packet_information`].
pub(crate) const PACKET_INFORMATION: &str =
    "has four bytes of packet information before each packet: attach it with IFF_NO_PI";

pub(crate) fn request(name: &str, flags: libc::c_int) -> libc::ifreq {
    let mut bytes = [0; libc::IFNAMSIZ];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    libc::ifreq {
        ifr_name: bytes,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    }
}

/// Returns the name of the device that a queue is attached to.
///
/// # Errors
/// The descriptor is not an attached queue.
#[allow(unreachable_pub, reason = "the device of Linux has it as its own")]
pub fn name_of_queue(descriptor: &OwnedFd) -> io::Result<String> {
    let (name, _) = describe(descriptor.as_fd())
        .map_err(|errno| io::Error::other(format!("it is not an attached TUN queue ({})", errno.desc())))?;
    Ok(name)
}

/// Returns the name of the device that a queue is attached to, and the flags of both.
pub(crate) fn describe(descriptor: BorrowedFd<'_>) -> Result<(String, libc::c_int), Errno> {
    let mut answer = request("", 0);
    // SAFETY: the ioctl writes an ifreq. `answer` is an ifreq that lives until the ioctl returns.
    unsafe { get_iff(descriptor.as_raw_fd(), &mut answer) }?;
    // SAFETY: the kernel filled in the flags; any bit pattern is a c_short.
    let flags = libc::c_int::from(unsafe { answer.ifr_ifru.ifru_flags });
    #[allow(clippy::unnecessary_cast, reason = "signed on some processors")]
    let bytes = answer.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, flags))
}

/// Reports whether each packet of a TUN without virtio headers has packet information before it. The flags do
/// not tell: the kernel returns another flag of the value of IFF_NO_PI. So this writes packet information
/// without a packet: where it is expected, the kernel drops the nothing behind it, and elsewhere it refuses a
/// packet of IP version 0. While the device is down the answer is no.
pub(crate) fn has_packet_information(descriptor: BorrowedFd<'_>) -> bool {
    nix::unistd::write(descriptor, &[0; 4]).is_ok()
}
