//! A platform without systemd: there is nobody to tell.

use std::time::Duration;

/// There is none.
pub fn is_present() -> bool {
    false
}

/// Nothing.
pub(super) fn ready(_: &str) {}

/// Nothing.
pub fn reloading() {}

/// Nothing.
pub fn stopping() {}

/// Nothing.
pub(super) fn status(_: &str) {}

pub(super) fn extend_timeout(_: Duration) {}

pub(super) fn alive() {}

/// Nobody wants to hear anything.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    None
}
