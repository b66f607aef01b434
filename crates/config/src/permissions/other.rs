//! Permissions of files where there are no permission bits: nothing is reported.

use std::fs::Metadata;

/// Always `None`.
pub(super) fn readable_by_others(_: &Metadata) -> Option<u32> {
    None
}
