//! Keys stay in memory only: a crash must not write them to a disk.

#[cfg_attr(target_os = "linux", path = "secrecy/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "secrecy/other.rs")]
mod platform;

/// Excludes the memory of this process from core dumps, including those that the kernel pipes to a program,
/// and from access by other processes of the same user. A failure is only logged.
pub(crate) fn forbid_core_dumps() {
    platform::forbid_core_dumps();
}
