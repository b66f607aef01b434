//! Detects that files are gone by which a daemon is found.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::listener::SocketFile;

#[cfg_attr(target_os = "linux", path = "watch/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "watch/polling.rs")]
mod platform;

/// The time for a program that removes one file after the other.
const PATIENCE: Duration = Duration::from_millis(200);

/// Returns once the file was removed, renamed or replaced.
pub async fn until_gone(file: &SocketFile) {
    let mut changes = platform::Changes::of(file.path());
    while file.is_own() {
        changes.next().await;
    }
}

/// Returns once a file of a directory was removed or renamed, or the directory was.
pub async fn until_one_is_gone(directory: &Path) {
    let mut changes = platform::Changes::of(directory);
    let mut before = names(directory);
    loop {
        let now = names(directory);
        if !before.is_subset(&now) {
            return tokio::time::sleep(PATIENCE).await;
        }
        before = now;
        changes.next().await;
    }
}

fn names(directory: &Path) -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).collect()
}
