//! The error with a dedicated exit code.

use std::fmt;

/// A permission is missing; contains the system's error.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) std::io::Error);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weft-bench has to run as root, for instance with sudo: {}", self.0)
    }
}

impl std::error::Error for Missing {}
