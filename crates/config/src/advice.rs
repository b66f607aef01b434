//! What to do where root is needed. In a unit of systemd that runs without, "as root" is no advice.

/// Returns the advice for a user, or for a unit that runs without root.
pub fn as_root(user: &'static str, unit: &'static str) -> &'static str {
    if is_in_unit_without_root() { unit } else { user }
}

/// A terminal of a desktop session has the variable too.
#[cfg(target_os = "linux")]
fn is_in_unit_without_root() -> bool {
    use std::io::{self, IsTerminal as _};
    let is_set = std::env::var_os("INVOCATION_ID").is_some_and(|id| !id.is_empty());
    is_set && !nix::unistd::geteuid().is_root() && !io::stderr().is_terminal()
}

#[cfg(not(target_os = "linux"))]
fn is_in_unit_without_root() -> bool {
    false
}
