//! When the packet thread gets a core: what it asks of the operating system's scheduler for itself and for the TUN
//! threads, which inherit it.

use std::io;

#[cfg_attr(target_os = "linux", path = "scheduling/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "scheduling/other.rs")]
mod platform;

/// How the packet thread competes for a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// As every other thread, in short slices.
    #[default]
    Ordinary,
    /// Before every ordinary thread.
    Realtime,
}

/// Sets the calling thread up to move packets; threads that it starts inherit it.
///
/// # Errors
/// Of [`Priority::Realtime`] only: it may not be had, or it would not be safe.
pub fn begin(priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Ordinary => platform::take_short_slices(),
        Priority::Realtime => platform::take_precedence()?,
    }
    Ok(())
}
