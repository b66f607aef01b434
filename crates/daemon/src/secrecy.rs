//! Keys stay in memory only: a crash must not write them to a disk.

#[cfg_attr(target_os = "linux", path = "secrecy/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "secrecy/other.rs")]
mod platform;

/// Keeps the memory of this process out of core dumps, also those that the kernel pipes to a program, and out of
/// reach of other processes of the same user. A failure is logged: it is no reason not to run.
pub(crate) fn forbid_core_dumps() {
    platform::forbid_core_dumps();
}
