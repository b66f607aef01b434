//! A platform without systemd: all calls do nothing.

use std::time::Duration;

/// Always returns false.
pub fn is_present() -> bool {
    false
}

pub(super) fn ready(_: &str) {}

pub fn reloading() {}

pub fn stopping() {}

pub(super) fn status(_: &str) {}

pub(super) fn extend_timeout(_: Duration) {}

pub(super) fn alive() {}

/// Always returns `None`.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    None
}
