//! Permissions of files where there are no permission bits: nothing is told.

use std::fs::Metadata;

/// Nothing.
pub(super) fn readable_by_others(_: &Metadata) -> Option<u32> {
    None
}
