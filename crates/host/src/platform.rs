//! What differs between systems: files that only their owner may read, and processes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(any(test, windows))]
mod access_list;
#[cfg_attr(unix, path = "platform/unix.rs")]
#[cfg_attr(not(unix), path = "platform/windows.rs")]
mod files;
#[cfg(target_os = "linux")]
#[path = "platform/linux.rs"]
mod process;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
#[path = "platform/bsd.rs"]
mod process;

#[cfg(windows)]
#[path = "platform/windows/process.rs"]
mod process;

#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows)))]
use crate::unsupported::process;

pub(super) use files::{
    is_open_to_all, is_same_file, other_owner, sync_directory, try_lock, try_lock_shared, write_private,
};
pub(super) use process::has_lost_its_device;

/// Replaces a file whole or not at all by a new one of mode 0600. The target of a symbolic link is replaced,
/// and the link stays.
pub(super) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let target = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let mut temporary = target.clone().into_os_string();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    let replaced =
        write_private(&temporary, text.as_bytes()).and_then(|()| std::fs::rename(&temporary, &target));
    if let Err(error) = replaced {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    if let Some(directory) = target.parent() {
        // A failure is ignored: the new text is in place, though a power failure may bring back the old text.
        let _ = sync_directory(directory);
    }
    Ok(())
}

/// A process: its id, and its start time in the system's units, which distinguishes it from a later process
/// with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id.
    pub id: u32,
    /// The start time; 0 if the system does not report it.
    pub started: u64,
}

impl Process {
    /// Whether the system has a signal by which a process can be told to end.
    pub const TAKES_SIGNALS: bool = cfg!(unix);

    /// Tells the process to end and waits. Returns whether it has ended within `patience`. Where there are no
    /// signals, this only waits: the process has to be told over its control socket before.
    ///
    /// # Errors
    /// This process may not tell it to end.
    pub fn end(self, patience: Duration) -> io::Result<bool> {
        process::end(self, patience)
    }

    /// Returns the current process.
    pub(super) fn this() -> Self {
        let id = std::process::id();
        Self { id, started: process::started(id).unwrap_or_default() }
    }

    /// Reports whether it is seen to be in another network namespace than this thread.
    pub fn is_elsewhere(&self) -> bool {
        crate::netns::is_elsewhere(self.id)
    }

    /// Reports whether it belongs to this user; true if the system does not report its user.
    pub(super) fn is_of(&self, user: u32) -> bool {
        process::user(self.id).is_none_or(|is| is == user)
    }

    /// Reports whether it still runs; true if the system does not report start times.
    pub(super) fn is_alive(&self) -> bool {
        process::started(self.id).unwrap_or_default() == self.started
    }
}
