//! What cannot be known on systems other than Unix.

/// Returns `None`: files have no permission bits.
pub(crate) fn open_to_all() -> Option<u32> {
    None
}

/// Always false: every failure of the resolver counts as temporary.
pub(crate) fn is_unknown(_: &str) -> bool {
    false
}

/// Always false: the next read or write fails instead.
pub(crate) fn is_hung_up<S>(_: S) -> bool {
    false
}
