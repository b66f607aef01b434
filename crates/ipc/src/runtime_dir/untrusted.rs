//! Checks files in a directory that another user may write to, before this process trusts them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::platform;

/// The access for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing. A missing file is created, accessible to its owner only.
    Create,
}

/// The users that the files and sockets of an interface may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Users {
    /// The effective user of this process.
    pub(super) own: u32,
    /// The owner of the interface's directory.
    pub(super) owner: Option<u32>,
}

impl Users {
    /// Returns root and the effective user of this process.
    pub fn of_process() -> Self {
        Self { own: platform::user(), owner: None }
    }

    /// Reports whether files and sockets of this user are trusted.
    pub fn trusts(self, user: u32) -> bool {
        user == 0 || user == self.own || Some(user) == self.owner
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("root")?;
        let mut others: Vec<u32> = [Some(self.own), self.owner].into_iter().flatten().collect();
        others.retain(|user| *user != 0);
        others.dedup();
        others.iter().try_for_each(|user| write!(f, " or user {user}"))
    }
}

/// Why a file in the runtime directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum UntrustedError {
    /// It is not a regular file.
    #[error("{} is {kind}, and not a regular file that weft made: find out what made it, and remove it", path.display())]
    Kind {
        /// The path of the file.
        path: PathBuf,
        /// Its kind, such as `a FIFO`.
        kind: &'static str,
    },
    /// It has another hard link: writing to it would change a file elsewhere.
    #[error("{} has {links} names (hard links), and weft gives it one: find out what made it, and remove it", path.display())]
    Links {
        /// The path of the file.
        path: PathBuf,
        /// The number of its hard links.
        links: u64,
    },
    /// It is larger than anything that weft writes there.
    #[error("{} has {bytes} bytes, and weft writes {most} at most: find out what made it, and remove it", path.display())]
    Size {
        /// The path of the file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The largest size allowed, in bytes.
        most: u64,
    },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}, and not to {expected}: see what it is, and remove it", path.display())]
    Owner {
        /// The path of the file.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// The users that it may belong to.
        expected: Users,
    },
    /// The runtime directory, or that of the state, is not trusted: another user can change it, or a file is
    /// in the place of an interface's directory.
    #[error(
        "{}: this directory {reason}; let only root and this user change it, or take all interfaces down and remove it",
        path.display()
    )]
    Directory {
        /// The path of the directory.
        path: PathBuf,
        /// Why it is not trusted, as the predicate of the message.
        reason: String,
    },
    /// The runtime directory of a user in /tmp is not one of this user alone. Only its owner may remove it
    /// there.
    #[error(
        "{}: the runtime directory {reason}; set XDG_RUNTIME_DIR to a directory of this user that has mode 0700",
        path.display()
    )]
    UserDirectory {
        /// The path of the runtime directory.
        path: PathBuf,
        /// Why it is not trusted, as the predicate of the message.
        reason: String,
    },
    /// The system refused.
    #[error("cannot use {}: {error}", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

impl UntrustedError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), error }
    }
}

impl From<UntrustedError> for io::Error {
    fn from(error: UntrustedError) -> Self {
        match error {
            UntrustedError::Io { error, .. } => error,
            error => Self::other(error),
        }
    }
}

/// Reads a file in the directory of an interface. Returns its content and the open file; `None` if there is
/// no file. A file of more than `most` bytes is an error.
pub fn read_untrusted(path: &Path, most: u64) -> Result<Option<(Vec<u8>, File)>, UntrustedError> {
    let Some(file) = platform::open_untrusted(path, Access::Read, most)? else { return Ok(None) };
    let mut content = Vec::new();
    // The file may grow after its size was checked.
    let read = (&file).take(most + 1).read_to_end(&mut content).map_err(UntrustedError::io(path))? as u64;
    if read > most {
        return Err(UntrustedError::Size { path: path.to_owned(), bytes: read, most });
    }
    Ok(Some((content, file)))
}
