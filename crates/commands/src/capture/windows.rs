//! The output of a capture.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::windows::io::AsHandle as _;
use std::time::Duration;

use weft_ipc::OutputFile;

/// A file or standard output. Writes block.
pub(super) struct Output(OutputFile);

#[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
impl Output {
    pub(super) fn stdout() -> io::Result<Self> {
        Self::of(File::from(io::stdout().as_handle().try_clone_to_owned()?).into())
    }

    pub(super) fn of(file: OutputFile) -> io::Result<Self> {
        Ok(Self(file))
    }

    pub(super) fn into_file(self) -> OutputFile {
        self.0
    }

    /// Writes all bytes.
    pub(super) fn write(&mut self, bytes: &[u8], _: Duration) -> io::Result<usize> {
        self.0.write_all(bytes)?;
        Ok(bytes.len())
    }

    /// Always false: a write fails instead.
    pub(super) fn is_abandoned(&self) -> bool {
        false
    }
}
