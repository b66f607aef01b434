//! The messages, as systemd understands them.

use std::time::Duration;

use sd_notify::NotifyState;

/// Whether there is a service manager that listens.
pub fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// The interface can be used, at first or again; `text` is a line about it.
pub(super) fn ready(text: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(text)]);
}

/// Another configuration is being loaded, until it is ready again.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "cannot tell the service manager of a reload"),
    }
}

/// The interface is being taken down.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// A line for whoever looks at the service.
pub(super) fn status(text: &str) {
    send(&[NotifyState::Status(text)]);
}

/// The start, the stop or the reload takes so much longer from now on.
pub(super) fn extend_timeout(by: Duration) {
    send(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))]);
}

/// All works.
pub(super) fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Within which time the service manager wants to hear that all works, if it wants that of this process.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero())
}

fn send(states: &[NotifyState<'_>]) {
    if !is_present() {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot tell the service manager");
    }
}
