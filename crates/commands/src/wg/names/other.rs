//! What a resolver says of a name where nobody asks it: every failure may pass.

/// Not that anybody knew.
pub(super) fn is_unknown(_: &str) -> bool {
    false
}
