//! The scheduling policy of the packet thread and of the TUN threads, which inherit it.

use std::io;

#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
use linux as platform;

#[cfg(not(target_os = "linux"))]
use crate::unsupported::scheduling as platform;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// The same priority as other threads, with short time slices.
    #[default]
    Ordinary,
    /// Runs before every thread of ordinary priority.
    Realtime,
}

/// Keeps the calling thread on one processor: the one at this place among those that it may use.
///
/// # Errors
/// The process may use fewer processors, or it is not permitted.
pub fn pin(place: usize) -> io::Result<()> {
    platform::pin(place)
}

/// Applies the policy to the calling thread; threads that it starts inherit it.
///
/// # Errors
/// Only for [`Priority::Realtime`]: it is not permitted, or it would not be safe.
pub fn begin(priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Ordinary => platform::take_short_slices(),
        Priority::Realtime => platform::take_precedence()?,
    }
    Ok(())
}
