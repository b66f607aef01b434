//! Systems for which weft creates no device yet: another program may hand one in.

use std::io;
use std::os::fd::OwnedFd;

use crate::config::OpenError;
use crate::family::FamilyQueue;

/// The queue of a device, with an address family before each packet.
pub(super) type SystemQueue = FamilyQueue<OwnedFd>;

pub(super) fn create(_: &str) -> Result<(SystemQueue, String), OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Adopts the descriptor of a device.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    Ok((FamilyQueue::new(descriptor), name))
}

pub(super) fn name_of(_: &OwnedFd) -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}
