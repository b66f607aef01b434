//! Platforms without fork(2).

use super::{BackgroundError, Output};

/// Nothing: it cannot be made.
#[derive(Debug)]
pub struct Notifier(std::convert::Infallible);

/// Always an error.
pub fn begin() -> Result<Notifier, BackgroundError> {
    Err(BackgroundError::Unsupported)
}

impl Notifier {
    /// Leaves the terminal.
    pub fn ready(self, _: Output) -> Result<(), BackgroundError> {
        match self.0 {}
    }
}
