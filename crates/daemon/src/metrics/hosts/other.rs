//! Everything but Unix.

/// Always returns `None`: names have to be given on the command line.
pub(super) fn own_name() -> Option<String> {
    None
}
