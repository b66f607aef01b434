//! The twin for platforms where weft cannot set firewall rules yet: wanting some is an error, wanting none is not.

use weft_config::InterfaceName;

use super::{FirewallError, Present, Rules, Table};

/// An error if any rules are wanted.
pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
    check(rules)
}

/// An error if any rules are wanted.
pub fn check(rules: &Rules) -> Result<(), FirewallError> {
    if rules.is_empty() { Ok(()) } else { unsupported(&rules.interface) }
}

/// Nothing to do.
pub fn remove(_: &InterfaceName) -> Result<(), FirewallError> {
    Ok(())
}

/// Nothing is there.
pub fn present(_: &InterfaceName) -> Result<Present, FirewallError> {
    Ok(Present::default())
}

/// Nothing is there.
pub fn list() -> Result<Vec<Table>, FirewallError> {
    Ok(Vec::new())
}

fn unsupported(interface: &InterfaceName) -> Result<(), FirewallError> {
    Err(FirewallError::Unsupported { action: format!("set the firewall rules of {interface}") })
}
