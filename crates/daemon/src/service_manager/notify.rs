//! The messages to systemd.

use std::time::Duration;

use sd_notify::NotifyState;

/// Reports whether a service manager listens.
pub fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// Reports whether `systemctl status` shows a line about it.
pub(crate) fn shows_status() -> bool {
    is_present()
}

/// Reports that the interface can be used, at first or after a reload; `text` is a line about it.
pub(super) fn ready(text: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(text)]);
}

/// Reports that a configuration is being loaded. The load ends with `ready`.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot report a reload to the service manager"),
    }
}

/// Reports that the interface is being taken down.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Sets the line that `systemctl status` shows.
pub(super) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

/// Extends the timeout of the start, the stop or the reload: it is `by` from now on.
pub(super) fn extend_timeout(by: Duration) {
    send(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))]);
}

/// Resets the watchdog.
pub(super) fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Returns the watchdog's timeout, if the service manager expects notifications from this process.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero())
}

fn send(states: &[NotifyState<'_>]) {
    if !is_present() {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
