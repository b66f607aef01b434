//! Reports in the log what is turned away, at most one line a second: clients cause these lines, and must not
//! fill the disk with them.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(1);

/// The lines of one cause.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    left_out: u64,
}

impl Refusals {
    /// Logs that `what` is turned away, unless a line was logged less than a second ago.
    pub fn report(&self, what: &str, reason: &dyn Display) {
        match self.admit() {
            Some(0) => tracing::info!("{what} is turned away: {reason}"),
            Some(left_out) => tracing::info!(left_out, "{what} is turned away: {reason}"),
            None => {}
        }
    }

    /// Returns the number of lines left out since the last one, if one may be logged now.
    pub fn admit(&self) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            state.left_out += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_tells_how_many_were_left_out() {
        let refusals = Refusals::default();
        assert_eq!([refusals.admit(), refusals.admit(), refusals.admit()], [Some(0), None, None]);
        tokio::time::advance(INTERVAL).await;
        assert_eq!([refusals.admit(), refusals.admit()], [Some(2), None]);
    }
}
