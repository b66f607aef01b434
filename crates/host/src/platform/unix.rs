//! Files and processes, as Unix has them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Returns false: the configuration's loader looks at permission bits.
pub(crate) fn is_open_to_all(_: &Path) -> bool {
    false
}

/// Returns the owner of an open file, if that is not the effective user of this process. The path is not
/// used: in another user's directory it may lead to another file by now.
pub(crate) fn other_owner(file: &File) -> Option<u32> {
    let owner = file.metadata().ok()?.uid();
    (owner != nix::unistd::geteuid().as_raw()).then_some(owner)
}

/// Reports whether the path still leads to this open file.
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Opens what is locked while a file is edited: its directory, because each edit replaces the file.
pub(crate) fn open_for_lock(file: &Path) -> io::Result<File> {
    File::open(file.parent().unwrap_or(Path::new("/")))
}

/// Locks a file, unless another process has locked it.
pub(crate) fn try_lock(file: &File) -> Result<(), TryLockError> {
    file.try_lock()
}

/// Takes a shared lock on a file, unless another process has the exclusive lock.
pub(crate) fn try_lock_shared(file: &File) -> Result<(), TryLockError> {
    file.try_lock_shared()
}

/// Writes a new file that only its owner may read, in place of an existing file, and waits for the disk.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
