//! Socket options with an integer value.

use std::io;
use std::os::windows::io::AsRawSocket;

use windows_sys::Win32::Networking::WinSock::{SOCKET, setsockopt};

pub(crate) fn set_option(socket: &impl AsRawSocket, level: i32, name: i32, value: i32) -> io::Result<()> {
    let socket = socket.as_raw_socket() as SOCKET;
    let len = size_of::<i32>() as i32;
    // SAFETY: the option value is one int, which lives until after the call.
    let result = unsafe { setsockopt(socket, level, name, (&raw const value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
