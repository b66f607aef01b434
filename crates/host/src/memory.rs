//! The memory that this process may have: the machine's, or the limit of its cgroup if that is lower.

#[cfg_attr(target_os = "linux", path = "memory/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "memory/unknown.rs")]
mod platform;

/// Bytes that this process may still take; `None` where the platform does not tell.
pub fn available_bytes() -> Option<u64> {
    platform::available_bytes()
}

/// Bytes that this process may have in all; `None` where the platform does not tell.
pub fn total_bytes() -> Option<u64> {
    platform::total_bytes()
}
