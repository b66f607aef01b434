//! Platforms where weft does not do it yet.

use std::io;

pub(super) fn take_short_slices() {}

pub(super) fn take_precedence() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
