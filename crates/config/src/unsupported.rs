//! What cannot be known on systems other than Unix.

use std::fs::Metadata;

/// Returns `None`: files have no permission bits.
pub(crate) fn readable_by_others(_: &Metadata) -> Option<u32> {
    None
}

/// Returns `None`: endpoints have the index of an interface instead of its name.
pub(crate) fn name_of(_: u32) -> Option<String> {
    None
}

/// Returns `None`, as [`name_of`].
pub(crate) fn index_of(_: &str) -> Option<u32> {
    None
}
