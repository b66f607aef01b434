//! Platforms without fork(2).

use super::{BackgroundError, Output};

/// Cannot be created.
#[derive(Debug)]
pub struct Notifier(std::convert::Infallible);

/// Always returns an error.
pub fn begin() -> Result<Notifier, BackgroundError> {
    Err(BackgroundError::Unsupported)
}

impl Notifier {
    /// Never called.
    pub fn ready(self, _: Output) -> Result<(), BackgroundError> {
        match self.0 {}
    }
}
