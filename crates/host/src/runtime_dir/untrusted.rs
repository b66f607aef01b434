//! What is checked of a file in a directory that another user may write to, before this process believes it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::platform;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing. A missing file is made, for its owner alone.
    Create,
}

/// The users that the files and sockets of an interface may belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Users {
    /// The one that this process acts for.
    pub(super) own: u32,
    /// The owner of the interface's directory.
    pub(super) owner: Option<u32>,
}

impl Users {
    /// Root and the user that this process acts for.
    pub fn of_process() -> Self {
        Self { own: platform::user(), owner: None }
    }

    /// Whether files and sockets of this user are believed.
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
    /// It is no regular file.
    #[error("{} is {kind}, and not a regular file that weft made: find out what made it, and remove it", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// It has another name elsewhere: writing would change another file.
    #[error("{} has {links} names (hard links), and weft gives it one: find out what made it, and remove it", path.display())]
    Links {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        links: u64,
    },
    /// It is larger than anything that weft writes there.
    #[error("{} has {bytes} bytes, and weft writes {most} at most: find out what made it, and remove it", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// It is another user's.
    #[error("{} belongs to user {owner}, and not to {expected}: see what it is, and remove it", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who it may belong to.
        expected: Users,
    },
    /// The runtime directory can be changed by users who may not decide whom an interface belongs to.
    #[error(
        "{}: the runtime directory {reason}; take all interfaces down and remove it, or name another one in \
         WEFT_RUNTIME_DIR that only root and this user may change",
        path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system refused.
    #[error("cannot use {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
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

/// The content of a file in the directory of an interface, and the file; nothing where there is none. No more
/// than `most` bytes are read, and none of a file that is larger.
pub fn read_untrusted(path: &Path, most: u64) -> Result<Option<(Vec<u8>, File)>, UntrustedError> {
    let Some(file) = platform::open_untrusted(path, Access::Read, most)? else { return Ok(None) };
    let mut content = Vec::new();
    // It may grow after its size was seen.
    let read = (&file).take(most + 1).read_to_end(&mut content).map_err(UntrustedError::io(path))? as u64;
    if read > most {
        return Err(UntrustedError::Size { path: path.to_owned(), bytes: read, most });
    }
    Ok(Some((content, file)))
}
