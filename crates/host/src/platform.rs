//! What differs between systems: files that only their owner may read, and processes.

use std::io;
use std::time::Duration;

#[cfg_attr(unix, path = "platform/unix.rs")]
#[cfg_attr(not(unix), path = "platform/windows.rs")]
mod files;
#[cfg_attr(target_os = "linux", path = "platform/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "platform/other.rs")]
mod process;

pub(super) use files::{is_same_file, other_owner, sync_directory, write_private};

/// A process: its number, and when it began in the system's own count, by which it is told from a later one of the
/// same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// When it began; 0 where the system does not tell.
    pub started: u64,
}

impl Process {
    /// Tells it to end and waits. Returns whether it has ended within `patience`.
    ///
    /// # Errors
    /// It may not be told.
    pub fn end(self, patience: Duration) -> io::Result<bool> {
        process::end(self, patience)
    }

    /// This one.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        Self { id, started: process::started(id).unwrap_or_default() }
    }

    /// Whether it is one of this user's, as far as the system tells.
    pub(super) fn is_of(&self, user: u32) -> bool {
        process::user(self.id).is_none_or(|is| is == user)
    }

    /// Whether it still runs, as far as the system tells.
    pub(super) fn is_alive(&self) -> bool {
        process::started(self.id).unwrap_or_default() == self.started
    }
}
