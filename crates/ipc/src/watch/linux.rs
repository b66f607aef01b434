//! inotify(7), of a file or a directory. A bound socket keeps the inode of its file alive when the file is
//! removed, so the removal is reported as a change of attributes (the number of links).

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// The polling interval without inotify.
const INTERVAL: Duration = Duration::from_secs(1);

/// Waits for changes of a file, or of the files that a directory has.
pub(super) struct Changes(Option<AsyncFd<OwnedFd>>);

impl Changes {
    pub(super) fn of(path: &Path) -> Self {
        let watch = watch(path).inspect_err(|error| {
            // The system's inotify instances may be used up.
            tracing::debug!("looking at {} every second instead: {error}", path.display());
        });
        Self(watch.ok())
    }

    /// Waits until there may have been a change.
    pub(super) async fn next(&mut self) {
        let Some(watch) = &self.0 else { return tokio::time::sleep(INTERVAL).await };
        let Ok(mut ready) = watch.readable().await else { return tokio::time::sleep(INTERVAL).await };
        let mut events = [0; 4096];
        while nix::unistd::read(watch.as_fd(), &mut events).is_ok_and(|read| read > 0) {}
        ready.clear_ready();
    }
}

fn watch(path: &Path) -> std::io::Result<AsyncFd<OwnedFd>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let changes = AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_DONT_FOLLOW;
    match inotify.add_watch(path, changes) {
        // The file is gone already; the caller notices at once.
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    // SAFETY: an owned descriptor stays open and unchanged for as long as it is registered.
    unsafe { AsyncFd::register(OwnedFd::from(inotify)) }.map_err(Into::into)
}
