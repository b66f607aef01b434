//! A directory where there are no owners and permission bits.

use std::fs::File;
use std::io;
use std::path::Path;

use super::LOCK;

pub(super) fn make(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Services have no user of their own.
#[expect(clippy::unnecessary_wraps, reason = "the other platform's can fail")]
pub(super) fn give_to_services(_: &Path) -> io::Result<()> {
    Ok(())
}

/// The lock of the directory, which is made if it is missing.
pub(crate) fn open_lock(directory: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(directory.join(LOCK))
}
