//! Whether the machine slept: one of the kernel's clocks stands still meanwhile and another one does not.
//!
//! Nothing wakes up to compare them. A timer of the real-time clock that is never due is cancelled when that clock
//! jumps, and waking up is such a jump.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId as Clock, clock_gettime};

/// A shorter sleep than this concerns nobody, and a thread may be delayed as long between reading two clocks.
const SHORTEST: Duration = Duration::from_secs(1);
/// When the timer would be due: in 2106.
const NEVER: i64 = u32::MAX as i64;

/// Becomes readable when the machine may have slept.
#[derive(Debug)]
pub(super) struct SleepTimer {
    timer: TimerFd,
    asleep: Asleep,
}

impl SleepTimer {
    pub(super) fn new() -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        let this = Self { timer, asleep: Asleep::new(time_asleep()?) };
        this.arm()?;
        Ok(this)
    }

    fn arm(&self) -> io::Result<()> {
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        Ok(self.timer.set(Expiration::OneShot(TimeSpec::new(NEVER, 0)), flags)?)
    }

    /// How long it slept, if it did and the clock was not only set. Call it when the timer is readable.
    pub(super) fn woke(&mut self) -> Option<Duration> {
        // Cancelled is what it is meant to be. Armed anew even if not, so that it is not readable any more.
        let _ = self.timer.wait();
        let _ = self.arm();
        self.asleep.now(time_asleep().ok()?)
    }
}

impl AsFd for SleepTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// How long the machine slept since it was started.
fn time_asleep() -> io::Result<Duration> {
    // The sleep is in the first clock only. Whatever passes between the two readings makes it look shorter.
    let with = Duration::from(clock_gettime(Clock::CLOCK_BOOTTIME)?);
    let without = Duration::from(clock_gettime(Clock::CLOCK_MONOTONIC)?);
    Ok(with.saturating_sub(without))
}

/// The time asleep when it was last looked at.
#[derive(Debug)]
struct Asleep {
    before: Duration,
}

impl Asleep {
    fn new(total: Duration) -> Self {
        Self { before: total }
    }

    /// What was slept since the last look, unless it was nothing to speak of.
    fn now(&mut self, total: Duration) -> Option<Duration> {
        let slept = total.checked_sub(self.before).filter(|slept| *slept >= SHORTEST)?;
        self.before = total;
        Some(slept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_slept_since_the_last_time_is_told_once() {
        let mut asleep = Asleep::new(secs(100));
        assert_eq!(asleep.now(secs(100)), None);
        assert_eq!(asleep.now(secs(160)), Some(secs(60)));
        assert_eq!(asleep.now(secs(160)), None);
        assert_eq!(asleep.now(secs(165)), Some(secs(5)));
    }

    #[test]
    fn clocks_that_are_read_one_after_the_other_do_not_make_a_sleep() {
        let mut asleep = Asleep::new(secs(100));
        assert_eq!(asleep.now(secs(100) + Duration::from_millis(900)), None);
        assert_eq!(asleep.now(secs(99)), None);
        // Short sleeps add up.
        assert_eq!(asleep.now(secs(102)), Some(secs(2)));
    }

    #[test]
    fn a_machine_that_is_awake_has_not_slept() {
        let mut timer = SleepTimer::new().unwrap();
        assert_eq!(timer.woke(), None);
    }
}
