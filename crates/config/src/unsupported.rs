//! What cannot be known on systems other than Unix.

use std::fs::Metadata;

use super::Notice;

/// Returns `None`: files have no permission bits.
pub(crate) fn notice_of(_: &Metadata) -> Option<Notice> {
    None
}

/// Returns `None`: files have no permission bits.
pub(crate) fn readable_by_others(_: &Metadata) -> Option<u32> {
    None
}
