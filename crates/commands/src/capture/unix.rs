//! The output of a capture, with a reader that may stop reading or be gone.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weft_ipc::OutputFile;

use crate::hang_up::is_hung_up;

/// The number of bytes that a pipe accepts without blocking, if it is writable.
const PART: usize = libc::PIPE_BUF;

/// A regular file, or a pipe, terminal or other file with a reader at its other end.
pub(super) struct Output {
    file: OutputFile,
    has_reader: bool,
}

impl Output {
    pub(super) fn stdout() -> io::Result<Self> {
        Self::of(File::from(io::stdout().as_fd().try_clone_to_owned()?).into())
    }

    pub(super) fn of(file: OutputFile) -> io::Result<Self> {
        let has_reader = !file.file().metadata()?.is_file();
        Ok(Self { file, has_reader })
    }

    pub(super) fn into_file(self) -> OutputFile {
        self.file
    }

    /// Writes as much as possible without blocking, and returns the number of bytes; 0 if the output did not
    /// become writable within `wait`.
    pub(super) fn write(&mut self, bytes: &[u8], wait: Duration) -> io::Result<usize> {
        let part = if self.has_reader { &bytes[..bytes.len().min(PART)] } else { bytes };
        if self.has_reader && self.poll(PollFlags::POLLOUT, wait)?.is_empty() {
            return Ok(0);
        }
        match self.file.write(part) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(0)
            }
            result => result,
        }
    }

    /// Reports whether the reader is gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.has_reader && is_hung_up(self.file.file())
    }

    fn poll(&self, events: PollFlags, wait: Duration) -> io::Result<PollFlags> {
        let mut descriptors = [PollFd::new(self.file.file().as_fd(), events)];
        match poll(&mut descriptors, PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX)) {
            Ok(_) => Ok(descriptors[0].revents().unwrap_or(PollFlags::empty())),
            Err(nix::errno::Errno::EINTR) => Ok(PollFlags::empty()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Longer than a test may take.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_full_pipe_takes_nothing_and_delays_no_writer() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = Output::of(File::from(std::os::fd::OwnedFd::from(writer)).into()).unwrap();
        let mut written = 0;
        loop {
            match output.write(&[7; 100_000], Duration::ZERO).unwrap() {
                0 => break,
                count => written += count,
            }
        }
        assert!(written >= PART);
        assert!(!output.is_abandoned());
        reader.read_exact(&mut vec![0; written]).unwrap();
        assert_eq!(output.write(b"and on", LONG).unwrap(), 6);
        drop(reader);
        assert!(output.is_abandoned());
        assert_eq!(output.write(b"on", LONG).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_file_takes_everything_and_is_never_abandoned() {
        let mut output = Output::of(tempfile::tempfile().unwrap().into()).unwrap();
        assert_eq!(output.write(&[7; 100_000], Duration::ZERO).unwrap(), 100_000);
        assert!(!output.is_abandoned());
    }
}
