//! Handling of signals: waits end soon, and everything is cleaned up on exit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

const TICK: Duration = Duration::from_millis(20);

/// The error of work that a signal interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// A flag that SIGINT, SIGTERM or SIGHUP sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the signal handlers.
    pub(crate) fn watch() -> Result<Self> {
        let this = Self::default();
        let flag = this.0.clone();
        weft_commands::signals::watch(move |_| flag.store(true, Relaxed)).context("cannot handle signals")?;
        Ok(this)
    }

    /// Polls `condition` until it returns a value; an error if a signal or the limit comes first.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_closely(what, limit, TICK, condition)
    }

    /// Does the same as [`Self::wait_for`], and looks every `tick`.
    pub(crate) fn wait_closely<T>(
        &self,
        what: &str,
        limit: Duration,
        tick: Duration,
        mut condition: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        loop {
            if let Some(value) = condition()? {
                return Ok(value);
            }
            self.check()?;
            if start.elapsed() >= limit {
                bail!("{what}: not within {} s", limit.as_secs());
            }
            std::thread::sleep(tick);
        }
    }

    /// Returns an error if a signal has arrived.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Sleeps for `span`; an error if a signal arrives or has arrived.
    pub(crate) fn sleep(&self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        loop {
            self.check()?;
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Ok(());
            }
            std::thread::sleep(remaining.min(TICK));
        }
    }
}
