//! Unix.

/// The name that this machine gives itself.
pub(super) fn own_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}
