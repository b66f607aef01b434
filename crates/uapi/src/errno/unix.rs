//! The numbers of errno(3).

pub(super) const INVALID: i32 = libc::EINVAL;
pub(super) const PROTOCOL: i32 = libc::EPROTO;
pub(super) const PORT_IN_USE: i32 = libc::EADDRINUSE;
pub(super) const IO: i32 = libc::EIO;
