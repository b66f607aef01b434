//! Where no other process is ended yet.

use std::io;
use std::time::Duration;

use super::Process;

/// Unknown.
pub(super) fn started(_: u32) -> Option<u64> {
    None
}

/// Unknown.
pub(super) fn user(_: u32) -> Option<u32> {
    None
}

/// Always an error.
pub(crate) fn end(_: Process, _: Duration) -> io::Result<bool> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "weft does not end other processes on this platform yet"))
}
