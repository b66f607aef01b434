//! The name servers and the packet filter, which have modules of their own.

use serde_json::Value;

use super::HostError;
use super::step::Firewall;
use crate::config::{Dns, InterfaceName};

/// Makes them known to the system. The answer is what [`undo_dns`] needs, free of secrets.
pub(super) fn apply_dns(interface: &InterfaceName, dns: &Dns) -> Result<Value, HostError> {
    tracing::warn!(%interface, %dns, "name servers cannot be set yet");
    Ok(Value::Null)
}

/// Takes them back, as recorded; `None`: it is not known how far it came.
pub(super) fn undo_dns(interface: &InterfaceName, record: Option<&Value>) -> Result<(), HostError> {
    tracing::debug!(%interface, is_recorded = record.is_some(), "no name servers were set");
    Ok(())
}

/// Sets the rules of the interface in place of those that it has.
pub(super) fn apply_firewall(interface: &InterfaceName, firewall: &Firewall) -> Result<(), HostError> {
    tracing::warn!(%interface, %firewall, "the packet filter cannot be set yet");
    Ok(())
}

/// Takes the rules of the interface away.
pub(super) fn remove_firewall(interface: &InterfaceName) -> Result<(), HostError> {
    tracing::debug!(%interface, "no rules were set");
    Ok(())
}
