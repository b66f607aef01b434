//! utun of iOS, whose descriptor the network extension hands in.

use std::io;
use std::os::fd::OwnedFd;

use super::utun;
use crate::config::OpenError;
use crate::family::FamilyQueue;

/// The queue of a device.
pub(super) type SystemQueue = FamilyQueue<OwnedFd>;

pub(super) fn create(_: &str) -> Result<(SystemQueue, String), OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Adopts the descriptor of a utun, and returns the name of the interface.
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    let actual = utun::name_of(&descriptor).map_err(|error| OpenError::Descriptor {
        index: 0,
        name,
        reason: error.to_string(),
    })?;
    utun::make_room(&descriptor);
    Ok((FamilyQueue::new(descriptor), actual))
}

pub(super) fn name_of(descriptor: &OwnedFd) -> io::Result<String> {
    utun::name_of(descriptor)
}
