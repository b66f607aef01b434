//! Ctrl-C as something to wait for, beside the clock.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::time::TimeSpec;

/// Signals within this time of each other are one wish to end.
const DUPLICATES: Duration = Duration::from_millis(100);

/// SIGINT and SIGTERM, held back from every thread that is started from now on.
pub(super) struct Interrupt {
    signals: SigSet,
    before: SigSet,
}

impl Interrupt {
    /// Holds the signals back. To be called before the first thread is started.
    pub(super) fn block() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before))?;
        Ok(Self { signals, before })
    }

    /// Waits until then, and says whether a signal came first. After that another one ends the process at once.
    pub(super) fn wait_until(&self, end: Instant) -> bool {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.wait(left) {
                // Wrappers such as timeout(1) send the signal to the process and to its group.
                while self.wait(DUPLICATES) {}
                // Should this fail, the next Ctrl-C has to wait for the clean-up; nothing worse.
                let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }

    fn wait(&self, timeout: Duration) -> bool {
        let timeout = TimeSpec::from_duration(timeout);
        // SAFETY: both structures outlive the call, and no information about the signal is asked for.
        unsafe { libc::sigtimedwait(self.signals.as_ref(), std::ptr::null_mut(), timeout.as_ref()) > 0 }
    }
}
