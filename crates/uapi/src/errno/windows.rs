//! The numbers of wireguard-go and wg.exe on Windows: those of Linux, whatever Windows calls the errors.

#[cfg(feature = "sockets")]
use std::io;

pub(super) const INVALID: i32 = 22;
pub(super) const PROTOCOL: i32 = 71;
pub(super) const PORT_IN_USE: i32 = 98;
pub(super) const IO: i32 = 5;

/// Windows has other meanings for these numbers.
#[cfg(feature = "sockets")]
pub(super) fn error(number: i32) -> io::Error {
    let (kind, text) = match number {
        INVALID => (io::ErrorKind::InvalidInput, "invalid argument".to_owned()),
        PROTOCOL => (io::ErrorKind::InvalidData, "protocol error".to_owned()),
        PORT_IN_USE => (io::ErrorKind::AddrInUse, "address already in use".to_owned()),
        IO => (io::ErrorKind::Other, "input or output error".to_owned()),
        number => (io::ErrorKind::Other, format!("error {number} of Linux")),
    };
    io::Error::new(kind, text)
}
