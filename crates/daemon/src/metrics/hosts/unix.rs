//! Unix.

/// Returns the host name of this machine.
pub(super) fn own_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}
