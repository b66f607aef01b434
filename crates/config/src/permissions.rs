//! Permissions of files, as Unix has them.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt as _;

/// Returns the permission bits of a regular file, if its group or others can read it.
pub(super) fn readable_by_others(metadata: &Metadata) -> Option<u32> {
    let mode = metadata.permissions().mode() & 0o7777;
    (metadata.is_file() && mode & 0o044 != 0).then_some(mode)
}
