//! Ends a start that waits for names or for a command.

use weft_host::resolve::Cancel;

use super::UpError;

/// Ends a start early. Clones share one flag.
#[derive(Clone, Debug, Default)]
pub(super) struct Interruption {
    cancel: Cancel,
}

impl Interruption {
    /// Ends the start, unless it is over.
    pub(super) fn interrupt(&self) {
        self.cancel.cancel();
        weft_host::interrupt_commands();
    }

    /// Returns what ends look-ups.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Reports whether the start is to end.
    pub(super) fn is_asked(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Ends the start if it is to end.
    ///
    /// # Errors
    /// [`UpError::Interrupted`].
    pub(super) fn check(&self) -> Result<(), UpError> {
        if self.is_asked() { Err(UpError::Interrupted) } else { Ok(()) }
    }
}
