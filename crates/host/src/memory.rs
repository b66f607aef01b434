//! The memory that this process may have: the machine's, or the limit of its cgroup if that is lower.

#[cfg(target_os = "linux")]
#[path = "memory/linux.rs"]
mod platform;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
#[path = "memory/bsd.rs"]
mod platform;

#[cfg(windows)]
#[path = "memory/windows.rs"]
mod platform;

/// Bytes that this process may still take; `None` where the platform does not tell.
pub fn available_bytes() -> Option<u64> {
    platform::available_bytes()
}

/// Bytes that this process may have in all; `None` where the platform does not tell.
pub fn total_bytes() -> Option<u64> {
    platform::total_bytes()
}
