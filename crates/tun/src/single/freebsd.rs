//! tun(4) of FreeBSD, in the mode with an address family before each packet (TUNSIFHEAD).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;

use super::owner::{self, Owner};
use crate::config::OpenError;
use crate::family::FamilyQueue;

/// The controls of a device (`sys/net/if_tun.h`, and `if_tap.h` for the name).
mod ioctls {
    nix::ioctl_read!(name, b't', 93, libc::ifreq);
    nix::ioctl_write_ptr!(set_header, b't', 96, libc::c_int);
}

/// The queue of a device.
pub(super) type SystemQueue = FamilyQueue<Owner>;

/// Creates a device. It is made as `tun` with a number, and renamed if another name is wanted.
pub(super) fn create(name: &str) -> Result<(SystemQueue, String), OpenError> {
    // An interface that no process has open could be opened as if it were new.
    if nix::net::if_::if_nametoindex(name).is_ok() {
        return Err(OpenError::Exists { name: name.to_owned() });
    }
    let number = name.strip_prefix("tun").filter(|number| !number.is_empty());
    let is_tun = number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let device = owner::create(is_tun.then_some(name))
        .map_err(|error| owner::open_error("create the device", name, error))?;
    if !is_tun {
        device.set_name(name).map_err(|error| owner::open_error("name the device", name, error))?;
    }
    let actual =
        device.name().map_err(|error| owner::open_error("read the name of the device", name, error))?;
    Ok((FamilyQueue::new(Owner::Created(device)), actual))
}

/// Adopts the descriptor of a device, changes it to that mode, and returns the name of the interface.
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    let refused = |reason: String, name| OpenError::Descriptor { index: 0, name, reason };
    let actual = match name_of(&descriptor) {
        Ok(actual) => actual,
        Err(error) => return Err(refused(error.to_string(), name)),
    };
    // A tap(4) has a name too, and not this mode.
    // SAFETY: the call reads an int, which lives until it returns.
    match unsafe { ioctls::set_header(descriptor.as_raw_fd(), &1) } {
        Ok(_) => Ok((FamilyQueue::new(Owner::Adopted(descriptor)), actual)),
        Err(errno) => Err(refused(not_tun(errno).to_string(), actual)),
    }
}

/// Returns the name of the interface.
pub(super) fn name_of(descriptor: &OwnedFd) -> io::Result<String> {
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes an ifreq, and `request` is one that lives until it returns.
    unsafe { ioctls::name(descriptor.as_raw_fd(), &raw mut request) }.map_err(not_tun)?;
    let name = request.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

fn not_tun(errno: Errno) -> io::Error {
    io::Error::other(format!("it is not a tun(4) device ({})", errno.desc()))
}
