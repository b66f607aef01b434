//! The substitute for platforms where weft cannot set firewall rules yet: it is an error to set any.

use weft_config::InterfaceName;

use super::{FirewallError, Present, Rules, Table};

/// Fails if any rules are wanted.
pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
    check(rules)
}

/// Fails if any rules are wanted.
pub fn check(rules: &Rules) -> Result<(), FirewallError> {
    if rules.is_empty() { Ok(()) } else { unsupported(&rules.interface) }
}

/// Does nothing: there are no rules.
pub fn remove(_: &InterfaceName) -> Result<(), FirewallError> {
    Ok(())
}

/// Returns nothing: there are no rules.
pub fn present(_: &InterfaceName) -> Result<Present, FirewallError> {
    Ok(Present::default())
}

/// Returns nothing: there are no rules.
pub fn list() -> Result<Vec<Table>, FirewallError> {
    Ok(Vec::new())
}

fn unsupported(interface: &InterfaceName) -> Result<(), FirewallError> {
    Err(FirewallError::Unsupported { action: format!("set the firewall rules of {interface}") })
}
