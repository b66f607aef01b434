//! utun of macOS.

use std::io;
use std::os::fd::OwnedFd;

use super::owner::{self, Owner};
use super::utun;
use crate::config::OpenError;
use crate::family::FamilyQueue;

/// The queue of a device.
pub(super) type SystemQueue = FamilyQueue<Owner>;

/// Creates a device. The system knows no other names than `utun` with a number: any other name means the
/// first free one.
pub(super) fn create(name: &str) -> Result<(SystemQueue, String), OpenError> {
    let number = name.strip_prefix("utun").filter(|number| !number.is_empty());
    let is_utun = number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let device = owner::create(is_utun.then_some(name))
        .map_err(|error| owner::open_error("create the utun", name, error))?;
    let actual =
        device.name().map_err(|error| owner::open_error("read the name of the utun", name, error))?;
    utun::make_room(&device);
    Ok((FamilyQueue::new(Owner::Created(device)), actual))
}

/// Adopts the descriptor of a utun, and returns the name of the interface.
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    let actual = utun::name_of(&descriptor).map_err(|error| OpenError::Descriptor {
        index: 0,
        name,
        reason: error.to_string(),
    })?;
    utun::make_room(&descriptor);
    Ok((FamilyQueue::new(Owner::Adopted(descriptor)), actual))
}

pub(super) fn name_of(descriptor: &OwnedFd) -> io::Result<String> {
    utun::name_of(descriptor)
}
