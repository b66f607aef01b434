//! The error of a missing permission, which has an exit code.

/// A permission is missing; contains the system's error.
#[derive(Debug, thiserror::Error)]
#[error("weft-bench has to run as root, for instance with sudo: {0}")]
pub(crate) struct Missing(pub(crate) std::io::Error);
