//! Files that a command writes where its user says, perhaps as root below a directory in which other users
//! may make entries.
//!
//! An earlier file stays until the new one is whole: that is written beside it, and takes its name at the
//! end. A FIFO, which has 10 s to have a reader, a device and what is open already, such as /dev/stdout, are
//! written as they are, and so is a file that cannot be replaced: one with several names or of another user,
//! or in a directory that this user may not write to.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

#[cfg_attr(unix, path = "output_file/unix.rs")]
#[cfg_attr(not(unix), path = "output_file/windows.rs")]
mod platform;

/// A file that is written from its start. What is not [kept](Self::keep) leaves nothing behind.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    end: End,
}

/// What happens to a file at the end.
#[derive(Debug)]
enum End {
    /// Nothing: it is written where it is.
    InPlace,
    /// As above, but the earlier content is still there.
    ToEmpty,
    /// It was not there before.
    New(PathBuf),
    /// It replaces an earlier one.
    Beside { unfinished: PathBuf, earlier: PathBuf },
}

impl From<File> for OutputFile {
    /// Writes to what is open.
    fn from(file: File) -> Self {
        Self { file, end: End::InPlace }
    }
}

impl OutputFile {
    /// Opens a file to write it from its start. A new file gets this mode on Unix, and on Windows the access
    /// rights of its folder.
    ///
    /// In a directory of another user, or one that others may write to, such as /tmp, an entry that is there
    /// may be a trap: a link to a file of this user, a file that another user reads along, or a FIFO. There
    /// the entry has to be this user's or that of the directory's owner, a regular file with one name or a
    /// FIFO, and this user's if it is a link.
    ///
    /// # Errors
    /// Those of the system, and one that names what is in the way.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        let (file, end) = platform::open(path, mode)?;
        Ok(Self { file, end })
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// Those of [`Self::create`], [`Write::write`] and [`Self::keep`].
    pub fn write_whole(path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        let mut file = Self::create(path, mode)?;
        file.write_all(content)?;
        file.keep()
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reports whether it is a regular file, which is there when it was kept.
    pub fn is_made(&self) -> bool {
        matches!(self.end, End::New(_) | End::Beside { .. })
    }

    /// Keeps what was written: it takes the place of an earlier file.
    ///
    /// # Errors
    /// Those of the system. The earlier file is still there then, unless something is mounted over it: that
    /// is written in place. What was written is not there.
    pub fn keep(mut self) -> io::Result<()> {
        match &self.end {
            End::InPlace | End::New(_) => {}
            End::ToEmpty => self.empty()?,
            End::Beside { unfinished, earlier } => {
                self.file.sync_all()?;
                match fs::rename(unfinished, earlier) {
                    // A mount point, as of a file in a container.
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        return copy_over(unfinished, earlier);
                    }
                    renamed => renamed?,
                }
            }
        }
        self.end = End::InPlace;
        Ok(())
    }

    /// Keeps what was written, if anything was, as it is of use without its end, unless there is an earlier
    /// file.
    pub fn keep_if_new(mut self) {
        let is_empty = self.file.metadata().is_ok_and(|file| file.len() == 0);
        if matches!(self.end, End::New(_)) && !is_empty {
            self.end = End::InPlace;
        }
    }

    fn empty(&mut self) -> io::Result<()> {
        self.end = End::InPlace;
        self.file.set_len(0)
    }
}

/// Writes the content of a file over that of an earlier one. What needs room comes first: on a full disk the
/// earlier content stays.
fn copy_over(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::options().write(true).open(to)?);
    let (before, length) = (to.metadata()?.len(), from.metadata()?.len());
    if length > before {
        from.seek(SeekFrom::Start(before))?;
        to.seek(SeekFrom::Start(before))?;
        if let Err(error) = io::copy(&mut from, &mut to).and_then(|_| to.sync_all()) {
            let _ = to.set_len(before);
            return Err(error);
        }
    }
    from.rewind()?;
    to.rewind()?;
    io::copy(&mut from.take(before), &mut to)?;
    to.set_len(length)?;
    to.sync_all()
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if matches!(self.end, End::ToEmpty) {
            self.empty()?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let End::New(path) | End::Beside { unfinished: path, .. } = &self.end {
            // On a full disk it would take room.
            let _ = fs::remove_file(path);
        }
    }
}
