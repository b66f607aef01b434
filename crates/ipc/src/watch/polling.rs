//! Polls every second.

use std::path::Path;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(1);

/// Waits for changes of a file or a directory.
pub(super) struct Changes;

impl Changes {
    pub(super) fn of(_: &Path) -> Self {
        Self
    }

    /// Waits until there may have been a change.
    pub(super) async fn next(&mut self) {
        tokio::time::sleep(INTERVAL).await;
    }
}
