//! Waits for events that come soon on an idle machine but may take long on a busy one.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout after which a test fails: far beyond WireGuard's own timers, and beyond the time that ten thousand
/// peers take in a debug build while other work keeps every core busy.
pub const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(5);

/// Polls `condition` until it returns a value.
///
/// # Panics
///
/// When it returns none within [`PATIENCE`]; the message contains `what`.
#[track_caller]
pub fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    wait_until_ok(|| condition().ok_or_else(|| what.to_owned()))
}

/// Polls `condition` until it holds.
///
/// # Panics
///
/// When it does not hold within [`PATIENCE`]; the message contains `what`.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_until(what, || condition().then_some(()));
}

/// Returns what `work` returns, which may block, on another thread.
///
/// # Panics
///
/// When it panics, or does not return within [`PATIENCE`]; the message contains `what`.
#[track_caller]
pub fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::sync_channel(1);
    thread::spawn(move || drop(done.send(work())));
    match result.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: it panicked"),
        Err(RecvTimeoutError::Timeout) => panic!("waited {} s in vain: {what}", PATIENCE.as_secs()),
    }
}

/// Retries `attempt` until it succeeds.
///
/// # Panics
///
/// When it does not succeed within [`PATIENCE`]; the message contains the last error.
#[track_caller]
pub fn wait_until_ok<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(said) => {
                assert!(start.elapsed() < PATIENCE, "waited {} s in vain: {said}", PATIENCE.as_secs());
            }
        }
        thread::sleep(TICK);
    }
}
