//! Platforms where weft does not end other processes yet.

use std::io;
use std::time::Duration;

use super::Process;

/// Always `None`.
pub(super) fn started(_: u32) -> Option<u64> {
    None
}

/// Always `None`.
pub(super) fn user(_: u32) -> Option<u32> {
    None
}

/// Always an error.
pub(crate) fn end(_: Process, _: Duration) -> io::Result<bool> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "weft does not end other processes on this platform yet"))
}
