//! The one error that has an exit code of its own.

use std::fmt;

/// A permission is missing: what the system answered.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) std::io::Error);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weft-bench has to run as root, for instance with sudo: {}", self.0)
    }
}

impl std::error::Error for Missing {}
