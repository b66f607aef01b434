//! Waiting for what happens soon on an idle machine, and may take long on a busy one.

use std::thread;
use std::time::{Duration, Instant};

/// How long an event is waited for before a test gives up: far beyond what anything takes by WireGuard's own timers, and
/// beyond what ten thousand peers take without optimisation where other work keeps every core busy.
pub const PATIENCE: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(5);

/// Asks again and again until there is an answer.
///
/// # Panics
///
/// When there is none within [`PATIENCE`]; `what` says what was waited for.
#[track_caller]
pub fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    wait_until_ok(|| condition().ok_or_else(|| what.to_owned()))
}

/// Tries again and again until it goes well.
///
/// # Panics
///
/// When it does not within [`PATIENCE`], with what the last attempt said.
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
