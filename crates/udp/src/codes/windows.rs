//! Codes of the errors that the sockets distinguish, on Windows.

use windows_sys::Win32::Networking::WinSock;
pub(crate) use windows_sys::Win32::Networking::WinSock::{
    WSAEADDRINUSE as EADDRINUSE, WSAEADDRNOTAVAIL as EADDRNOTAVAIL, WSAEAFNOSUPPORT as EAFNOSUPPORT,
    WSAEMSGSIZE as EMSGSIZE, WSAENOBUFS as ENOBUFS,
};

/// A network driver cannot send batches, whatever their size.
pub(crate) const NO_BATCHES: i32 = WinSock::WSAEOPNOTSUPP;

/// Those that may be caused by a batch: single datagrams may be accepted.
pub(crate) const OF_BATCHES: &[i32] = &[EMSGSIZE, NO_BATCHES, WinSock::WSAEINVAL];

/// Those that may be caused by the source address: it is not, or no longer, an address of the machine.
pub(crate) const OF_SOURCES: &[i32] =
    &[WinSock::WSAEINVAL, EADDRNOTAVAIL, WinSock::WSAENETUNREACH, WinSock::WSAEHOSTUNREACH];
