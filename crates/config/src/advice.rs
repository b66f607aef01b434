//! What to do where root is needed. In a unit of systemd that runs without, "as root" is no advice.

/// Returns the advice for a user, or for a unit that runs without root.
pub fn as_root(user: &'static str, unit: &'static str) -> &'static str {
    if is_in_unit_without_root() { unit } else { user }
}

/// Returns the name of the unit of systemd that this process belongs to, or `weft@NAME` where it is not seen.
/// A terminal of a desktop session has the variable too.
#[cfg(target_os = "linux")]
pub fn unit() -> Option<String> {
    use std::io::{self, IsTerminal as _};
    let is_set = std::env::var_os("INVOCATION_ID").is_some_and(|id| !id.is_empty());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let name = groups.lines().find_map(|line| line.rsplit('/').next()?.strip_suffix(".service"));
    let name = name.unwrap_or("weft@NAME").to_owned();
    (is_set && !io::stderr().is_terminal()).then_some(name)
}

#[cfg(target_os = "linux")]
fn is_in_unit_without_root() -> bool {
    !nix::unistd::geteuid().is_root() && unit().is_some()
}

#[cfg(not(target_os = "linux"))]
fn is_in_unit_without_root() -> bool {
    false
}
