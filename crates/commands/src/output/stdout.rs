//! What standard output is, and which other users can access the file behind it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};

use crate::hang_up::is_hung_up;

fn file() -> io::Result<File> {
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Returns the permission bits of standard output, if it is a regular file with any permission for all users.
pub(crate) fn open_to_all() -> Option<u32> {
    let metadata = file().and_then(|file| file.metadata()).ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    (metadata.is_file() && mode & 0o007 != 0).then_some(mode)
}

/// Reports whether what is printed is lost: standard output is the null device. That also takes the place of
/// a descriptor that was closed when this process began.
pub(crate) fn is_lost() -> bool {
    let is_null = |own: &fs::Metadata| {
        let null = fs::metadata("/dev/null");
        own.file_type().is_char_device() && null.is_ok_and(|null| null.rdev() == own.rdev())
    };
    file().and_then(|file| file.metadata()).is_ok_and(|own| is_null(&own))
}

/// Makes sure of what was printed: in a file it is on the disk, and the reader of a pipe is still there.
pub(super) fn settle() -> io::Result<()> {
    let file = file()?;
    if is_hung_up(&file) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
}
