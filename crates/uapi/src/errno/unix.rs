//! The numbers of errno(3).

#[cfg(feature = "sockets")]
use std::io;

pub(super) const INVALID: i32 = libc::EINVAL;
pub(super) const PROTOCOL: i32 = libc::EPROTO;
pub(super) const PORT_IN_USE: i32 = libc::EADDRINUSE;
pub(super) const IO: i32 = libc::EIO;

#[cfg(feature = "sockets")]
pub(super) fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
