//! What happens in which interval.

use crate::floods::attack::{Attack, Kind};

/// How the daemon ends before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Restart {
    /// As `systemctl restart` does it.
    Orderly,
    /// By SIGKILL.
    Crash,
}

/// Events happen every few intervals, and in a short run often enough that each kind comes.
pub(super) struct Schedule {
    intervals: usize,
}

const RELOADS_EVERY: usize = 3;
const FLOODS_EVERY: usize = 5;
const RESTARTS_EVERY: usize = 10;
/// Intervals of a run that is long enough for these periods.
const LONG: usize = 60;

impl Schedule {
    pub(super) fn new(intervals: usize) -> Self {
        Self { intervals }
    }

    /// Returns how the daemon is restarted before this interval. It runs through the second half without a
    /// restart, which would hide that it grows.
    pub(super) fn restart(&self, interval: usize) -> Option<Restart> {
        let nth = self.event(interval, RESTARTS_EVERY).filter(|_| interval < self.intervals.div_ceil(2))?;
        Some(if nth.is_multiple_of(2) { Restart::Orderly } else { Restart::Crash })
    }

    /// Reports whether the configuration changes in this interval.
    pub(super) fn reload(&self, interval: usize) -> bool {
        self.event(interval, RELOADS_EVERY).is_some()
    }

    /// Returns the flood of this interval.
    pub(super) fn attack(&self, interval: usize, per_second: u32) -> Option<Attack> {
        let attack = |kind, count| Attack { kind, count, is_v6: false, per_second };
        Some(match self.event(interval, FLOODS_EVERY)? % 5 {
            0 => attack(Kind::NoMac1, 65_000),
            1 => attack(Kind::Mac1, 65_000),
            2 => attack(Kind::Proven, 1),
            3 => attack(Kind::Junk, 1024),
            _ => attack(Kind::Data, 1024),
        })
    }

    /// Returns the number of events before this interval, of those that come every `period` intervals of a
    /// long run; `None` if none comes in it.
    fn event(&self, interval: usize, period: usize) -> Option<usize> {
        let period = (period * self.intervals / LONG).clamp(1, period);
        let first = period / 2;
        (interval > 0 && interval >= first && (interval - first).is_multiple_of(period))
            .then(|| (interval - first) / period)
    }
}
