//! A log file of bounded size. What was logged earlier is in a second file beside it.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The largest size of each of the two files.
const MOST_BYTES: u64 = 1 << 20;

/// A log file, open for appending.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    file: fs::File,
    limit: u64,
}

impl File {
    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with_most(path, MOST_BYTES)
    }

    fn with_most(path: &Path, limit: u64) -> io::Result<Self> {
        let file = fs::File::options().append(true).create(true).open(path)?;
        Ok(Self { path: path.to_owned(), file, limit })
    }

    /// Returns another descriptor of the file. What is written to it counts.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn try_clone(&self) -> io::Result<fs::File> {
        self.file.try_clone()
    }

    /// Moves the content to the second file. The first stays the same, for the other descriptors.
    fn start_again(&self) -> io::Result<()> {
        let mut earlier = self.path.clone().into_os_string();
        earlier.push(".old");
        // Without it the file starts again all the same.
        let _ = fs::copy(&self.path, earlier);
        fs::File::options().write(true).open(&self.path)?.set_len(0)
    }
}

impl Write for File {
    /// Writes a line whole: no line is in both files.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.file.metadata()?.len() + line.len() as u64 > self.limit {
            self.start_again()?;
        }
        self.file.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_files_keep_the_end_of_the_log_whatever_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wg0.log");
        fs::write(&path, "earlier\n").unwrap();
        let mut log = File::with_most(&path, 24).unwrap();
        let mut other = log.try_clone().unwrap();
        let read = || fs::read_to_string(&path).unwrap();
        log.write_all(b"first\n").unwrap();
        other.write_all(b"other\n").unwrap();
        assert_eq!(read(), "earlier\nfirst\nother\n");
        log.write_all(b"second\n").unwrap();
        other.write_all(b"another\n").unwrap();
        assert_eq!(read(), "second\nanother\n");
        let old = directory.path().join("wg0.log.old");
        assert_eq!(fs::read_to_string(&old).unwrap(), "earlier\nfirst\nother\n");
        log.write_all(b"123456789\n").unwrap();
        assert_eq!(read(), "123456789\n");
        assert_eq!(fs::read_to_string(&old).unwrap(), "second\nanother\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
