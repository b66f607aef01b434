//! Going to the background once all is well: the command returns when the daemon can be used, and says why if it
//! cannot.

use std::io;

#[cfg_attr(unix, path = "background/unix.rs")]
#[cfg_attr(not(unix), path = "background/other.rs")]
mod platform;

pub use platform::{Notifier, begin};

/// What becomes of standard output and standard error in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// They stay where they were: somebody wants to see the log there.
    Kept,
    /// Nothing is to be seen.
    Discarded,
}

/// Why the process cannot go to the background.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// A copy of the process would have only one of its threads.
    #[error("cannot go to the background: the process has {0} threads already")]
    Threads(usize),
    /// The system refused.
    #[error("cannot go to the background: cannot {action}: {source}; stay in the foreground with -f")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// This platform has no such thing.
    #[error("cannot go to the background on this platform; stay in the foreground with -f")]
    Unsupported,
}
