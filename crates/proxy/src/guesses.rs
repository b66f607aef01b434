//! Wrong passwords: each source has so many a second, over however many connections.
//!
//! A right password is answered at once and a wrong one in its turn, so a client that does not wait learns
//! that its password is wrong. What it does not wait for still counts, and when too many wrong ones of its
//! source wait for their answers, no password of that source is compared: also a right one waits then.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use weft_ipc::Source;

/// The time between the answers to two wrong passwords of a source.
const STEP: Duration = Duration::from_millis(100);
/// Wrong passwords of a source that may wait for their answers.
const WAITING: u32 = 100;
/// Those that wait to be compared take turns at random within this time.
const TURN: Duration = Duration::from_secs(1);
/// Sources that are remembered. An attacker with more addresses has more tries.
const SOURCES: usize = 4096;

/// For each source with wrong passwords, when the last of them is answered.
#[derive(Debug, Default)]
pub(crate) struct Guesses(Mutex<HashMap<Source, Instant>>);

impl Guesses {
    /// Waits until a password of this source may be compared: at once, unless many wrong ones wait.
    pub(crate) async fn turn(&self, source: Source) {
        while let Some(earliest) = self.earliest(source) {
            sleep_until(earliest + TURN.mul_f64(rand::random())).await;
        }
    }

    /// Records a wrong password, and waits until it may be answered. A Unix socket is for its user alone, and
    /// its clients have no address.
    pub(crate) async fn wrong(&self, source: Source) {
        if source != Source::Unknown {
            sleep_until(self.record(source)).await;
        }
    }

    fn earliest(&self, source: Source) -> Option<Instant> {
        let last = *self.answered().get(&source)?;
        (last > Instant::now() + STEP * WAITING).then(|| last - STEP * WAITING)
    }

    fn record(&self, source: Source) -> Instant {
        let now = Instant::now();
        let mut answered = self.answered();
        if answered.len() >= SOURCES && !answered.contains_key(&source) {
            answered.retain(|_, last| *last > now);
            if answered.len() >= SOURCES
                && let Some(least) = answered.iter().min_by_key(|(_, last)| **last).map(|(source, _)| *source)
            {
                answered.remove(&least);
            }
        }
        let last = answered.entry(source).or_insert(now);
        *last = now.max(*last) + STEP;
        *last
    }

    fn answered(&self) -> MutexGuard<'_, HashMap<Source, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "guesses/tests.rs"]
mod tests;
