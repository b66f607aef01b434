//! tun(4) of FreeBSD, in the mode with an address family before each packet (TUNSIFHEAD).

use std::io;
use std::os::fd::OwnedFd;

use super::owner::{self, Owner};
use crate::config::OpenError;
use crate::family::FamilyQueue;

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

/// Adopts the descriptor of a device in that mode. The system does not tell its name.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    Ok((FamilyQueue::new(Owner::Adopted(descriptor)), name))
}

pub(super) fn name_of(_: &OwnedFd) -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}
