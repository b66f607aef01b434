//! Which other users can access the file behind standard output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;

/// Returns the permission bits of standard output, if it is a regular file with any permission for all users.
pub(super) fn open_to_all() -> Option<u32> {
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().ok()?);
    let metadata = stdout.metadata().ok()?;
    let mode = metadata.permissions().mode() & 0o777;
    (metadata.is_file() && mode & 0o007 != 0).then_some(mode)
}
