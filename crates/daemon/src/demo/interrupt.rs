//! Waits for Ctrl-C or a deadline.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::time::TimeSpec;

/// Signals within this time of each other count as one.
const DUPLICATES: Duration = Duration::from_millis(100);

/// SIGINT and SIGTERM, blocked in every thread that is started from now on.
pub(super) struct Interrupt {
    signals: SigSet,
    before: SigSet,
}

impl Interrupt {
    /// Blocks the signals. Call it before the first thread is started.
    pub(super) fn block() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))?;
        Ok(Self { signals, before })
    }

    /// Waits until `end`, and reports whether a signal came first. After a signal the next one ends the
    /// process at once.
    pub(super) fn wait_until(&self, end: Instant) -> bool {
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            if self.wait(remaining) {
                // Wrappers such as timeout(1) send the signal to the process and to its group.
                while self.wait(DUPLICATES) {}
                // If this fails, the next Ctrl-C takes effect only after the clean-up.
                let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
                return true;
            }
            if remaining.is_zero() {
                return false;
            }
        }
    }

    fn wait(&self, timeout: Duration) -> bool {
        let timeout = TimeSpec::from_duration(timeout);
        // SAFETY: both structures outlive the call, and the null pointer asks for no information about the
        // signal.
        unsafe { libc::sigtimedwait(self.signals.as_ref(), std::ptr::null_mut(), timeout.as_ref()) > 0 }
    }
}
