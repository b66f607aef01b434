//! Detects that the socket's file is gone.

use weft_ipc::listener::SocketFile;

#[cfg_attr(target_os = "linux", path = "watch/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "watch/polling.rs")]
mod platform;

/// Returns once the file was removed, renamed or replaced.
pub(super) async fn until_gone(file: &SocketFile) {
    let mut changes = platform::Changes::of(file.path());
    while file.is_own() {
        changes.next().await;
    }
}
