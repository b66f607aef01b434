//! Waiting for something that happens soon on an idle machine, and may take long on a busy one.

use std::time::{Duration, Instant};

/// Far beyond what anything here takes by WireGuard's own timers.
const PATIENCE: Duration = Duration::from_secs(45);
const TICK: Duration = Duration::from_millis(10);

/// Asks again and again until there is an answer.
#[track_caller]
pub(crate) fn until_some<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    within(PATIENCE, what, condition)
}

/// Asks again and again until it is so.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()));
}

/// Asks again and again until there is an answer, for as long as this.
#[track_caller]
pub(crate) fn within<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not within {} s", limit.as_secs());
        std::thread::sleep(TICK);
    }
}
