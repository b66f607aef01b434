//! What differs between the sockets of the systems: marks, fragments, buffers, and what an error means.

#[cfg(target_vendor = "apple")]
mod apple;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
mod bsd;
#[cfg(target_os = "freebsd")]
mod freebsd;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_vendor = "apple")]
pub(crate) use self::apple::*;
#[cfg(target_os = "freebsd")]
pub(crate) use self::freebsd::*;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use self::linux::*;
#[cfg(windows)]
pub(crate) use self::windows::*;
