//! The options of a utun, a kernel control socket of macOS and iOS (XNU, `bsd/net/if_utun.h`).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Number of packets that may wait to be read. The default of XNU is 1: each packet would wait for the read
/// of the one before. About as many as in the ring of a Linux TUN.
const PENDING_PACKETS: u32 = 512;
// The C library does not define all of them for every system.
const SYSPROTO_CONTROL: libc::c_int = 2;
const UTUN_OPT_IFNAME: libc::c_int = 2;
const UTUN_OPT_MAX_PENDING_PACKETS: libc::c_int = 16;
/// Bytes that may wait to be read: [`PENDING_PACKETS`] of 1,500 bytes with the kernel's overhead for each.
/// The kernel may allow less.
const RECEIVE_BUFFER_BYTES: libc::c_int = 2 << 20;
const MIN_RECEIVE_BUFFER_BYTES: libc::c_int = 128 << 10;

/// Makes room for packets to wait. The device works without it, more slowly.
pub(super) fn make_room(utun: impl AsFd) {
    if let Err(error) = set(&utun, SYSPROTO_CONTROL, UTUN_OPT_MAX_PENDING_PACKETS, &PENDING_PACKETS) {
        tracing::warn!(%error, "only one packet at a time can wait in the utun");
    }
    let mut bytes = RECEIVE_BUFFER_BYTES;
    while let Err(error) = set(&utun, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes) {
        if bytes <= MIN_RECEIVE_BUFFER_BYTES {
            tracing::warn!(%error, "the utun keeps its receive buffer");
            return;
        }
        bytes /= 2;
    }
}

fn set<T>(utun: &impl AsFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let descriptor = utun.as_fd().as_raw_fd();
    // SAFETY: the call reads `len` bytes from `value`, which lives until it returns.
    match unsafe { libc::setsockopt(descriptor, level, option, std::ptr::from_ref(value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the name of the interface.
pub(super) fn name_of(utun: impl AsFd) -> io::Result<String> {
    let mut name = [0_u8; libc::IFNAMSIZ];
    let mut len = name.len() as libc::socklen_t;
    let descriptor = utun.as_fd().as_raw_fd();
    // SAFETY: the call writes at most `len` bytes to `name` and their number to `len`; both live until it
    // returns.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            SYSPROTO_CONTROL,
            UTUN_OPT_IFNAME,
            name.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::other(format!("it is not a utun ({})", io::Error::last_os_error())));
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}
