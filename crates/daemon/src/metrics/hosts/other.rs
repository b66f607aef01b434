//! Everything but Unix.

/// Names are given on the command line.
pub(super) fn own_name() -> Option<String> {
    None
}
