//! Where a capture goes; the rights of a new file are those that its folder gives.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

/// Nothing to say.
pub(super) fn for_the_owner(_: &mut OpenOptions) {}

/// A file or standard output, which is waited for.
pub(super) struct Output(Box<dyn Write>);

#[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
impl Output {
    pub(super) fn stdout() -> io::Result<Self> {
        Ok(Self(Box::new(io::stdout().lock())))
    }

    pub(super) fn of(file: File) -> io::Result<Self> {
        Ok(Self(Box::new(file)))
    }

    /// Writes it all.
    pub(super) fn write(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        self.0.write_all(bytes).and_then(|()| self.0.flush())?;
        Ok(bytes.len())
    }

    /// That shows when something is written.
    pub(super) fn is_abandoned(&self) -> bool {
        false
    }
}
