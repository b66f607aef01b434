//! Going to the background: the command returns when the daemon can be used, and otherwise reports why it
//! cannot.

use std::io;

#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub use crate::unsupported::background::{Notifier, begin};
#[cfg(unix)]
pub use unix::{Notifier, begin};

/// Where standard output and standard error go in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// They stay as they are, to show the log.
    Kept,
    /// They stay if they are files, where the log may be read later, and else go to /dev/null: a pipe that
    /// stays open keeps its reader waiting.
    Files,
    /// They go to /dev/null.
    Discarded,
}

/// Why the process cannot go to the background.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// fork(2) copies only one of the threads.
    #[error("cannot go to the background: the process has {0} threads already")]
    Threads(usize),
    /// The system refused.
    #[error("cannot go to the background: cannot {action}: {source}; stay in the foreground with -f")]
    System {
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// This platform has no fork(2).
    #[error("cannot go to the background on this platform; stay in the foreground with -f")]
    Unsupported,
}
