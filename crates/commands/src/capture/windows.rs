//! The output of a capture.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

/// A file or standard output. Writes block.
pub(super) struct Output(Box<dyn Write + Send>);

#[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
impl Output {
    pub(super) fn stdout() -> io::Result<Self> {
        Ok(Self(Box::new(io::stdout())))
    }

    pub(super) fn of(file: File) -> io::Result<Self> {
        Ok(Self(Box::new(file)))
    }

    /// Writes all bytes.
    pub(super) fn write(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        self.0.write_all(bytes).and_then(|()| self.0.flush())?;
        Ok(bytes.len())
    }

    /// Always false: a write fails instead.
    pub(super) fn is_abandoned(&self) -> bool {
        false
    }
}
