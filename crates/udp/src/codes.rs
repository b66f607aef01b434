//! Codes of the errors that the sockets distinguish.

#![allow(unused_imports, dead_code, reason = "the sockets of Linux need few of them")]

pub(crate) use libc::{EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, EMSGSIZE, ENOBUFS};

/// A device cannot send batches, whatever their size: it has no checksum offload.
pub(crate) const NO_BATCHES: i32 = libc::EIO;

/// Those that may be caused by a batch: single datagrams may be accepted.
pub(crate) const OF_BATCHES: &[i32] = &[EMSGSIZE, NO_BATCHES, libc::EINVAL];

/// Those that may be caused by the source address: it is not, or no longer, an address of the machine.
pub(crate) const OF_SOURCES: &[i32] =
    &[libc::EINVAL, EADDRNOTAVAIL, libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENODEV, libc::ENXIO];
