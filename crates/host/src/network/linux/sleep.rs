//! Detects that the machine slept, or that its clock was set forward, by comparing pairs of the kernel's
//! clocks.
//!
//! No periodic wake-up is needed to compare them: a timer of the real-time clock that is never due is
//! cancelled when that clock jumps, and the end of a sleep is such a jump.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};

use crate::network::clocks::Ahead;

/// When the timer would be due: in 2106.
const NEVER: i64 = u32::MAX as i64;

/// Becomes readable when the machine may have slept, or its clock was set.
#[derive(Debug)]
pub(super) struct SleepTimer {
    timer: TimerFd,
    asleep: Ahead,
    wall_clock: Ahead,
}

/// What happened to the clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Jump {
    /// How long the machine slept.
    pub(super) slept: Option<Duration>,
    /// By how much the wall clock was set forward.
    pub(super) set_forward: Option<Duration>,
}

impl SleepTimer {
    pub(super) fn new() -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let this = Self { timer, asleep: Ahead::new(time_asleep()?), wall_clock: Ahead::new(started_at()?) };
        this.arm()?;
        Ok(this)
    }

    fn arm(&self) -> io::Result<()> {
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        Ok(self.timer.set(Expiration::OneShot(TimeSpec::new(NEVER, 0)), flags)?)
    }

    /// Returns what happened. To be called when the timer is readable.
    pub(super) fn jumped(&mut self) -> Jump {
        // The timer is expected to be cancelled. It is armed again even if it was not, so that it is no
        // longer readable.
        let _ = self.timer.wait();
        let _ = self.arm();
        let Self { asleep, wall_clock, .. } = self;
        let set_forward = started_at().ok().and_then(|at| {
            // After a clock was set back, the next jump is measured from its new value.
            wall_clock.before = wall_clock.before.min(at);
            wall_clock.now(at)
        });
        Jump { slept: time_asleep().ok().and_then(|total| asleep.now(total)), set_forward }
    }
}

impl AsFd for SleepTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Returns how long the machine has slept since it was started.
fn time_asleep() -> io::Result<Duration> {
    // Only the first clock includes sleep. Time that passes between the two readings makes the sleep look
    // shorter.
    let with = Duration::from(clock_gettime(Clock::CLOCK_BOOTTIME)?);
    let without = Duration::from(clock_gettime(Clock::CLOCK_MONOTONIC)?);
    Ok(with.saturating_sub(without))
}

/// Returns when the machine was started according to its present wall clock, since 1970. The result is later
/// once the clock was set forward.
fn started_at() -> io::Result<Duration> {
    let wall_clock = Duration::from(clock_gettime(Clock::CLOCK_REALTIME)?);
    let since_start = Duration::from(clock_gettime(Clock::CLOCK_BOOTTIME)?);
    Ok(wall_clock.saturating_sub(since_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_machine_that_is_awake_has_not_slept() {
        let mut timer = SleepTimer::new().unwrap();
        assert_eq!(timer.jumped(), Jump::default());
    }

    #[test]
    fn a_clock_that_is_put_right_was_set_forward_once() {
        let mut timer = SleepTimer::new().unwrap();
        // As if it had been wrong by an hour so far.
        timer.wall_clock.before -= secs(3600);
        let jump = timer.jumped();
        assert!(jump.set_forward.is_some_and(|by| by.as_secs().abs_diff(3600) <= 1), "{jump:?}");
        assert_eq!((jump.slept, timer.jumped()), (None, Jump::default()));
        // Set back, and right again later.
        timer.wall_clock.before += secs(3600);
        assert_eq!(timer.jumped(), Jump::default());
        timer.wall_clock.before -= secs(60);
        assert!(timer.jumped().set_forward.is_some());
    }
}
