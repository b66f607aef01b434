//! Android: `VpnService` creates the device and hands its descriptor in.

use std::io;
use std::os::fd::OwnedFd;

use crate::config::OpenError;
use crate::plain::PlainQueue;

/// The queue of a device.
pub(super) type SystemQueue = PlainQueue;

pub(super) fn create(_: &str) -> Result<(SystemQueue, String), OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Adopts the descriptor of a device.
#[allow(clippy::unnecessary_wraps, reason = "on other systems it may fail")]
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    Ok((PlainQueue::new(descriptor), name))
}

pub(super) fn name_of(_: &OwnedFd) -> io::Result<String> {
    Err(io::ErrorKind::Unsupported.into())
}
