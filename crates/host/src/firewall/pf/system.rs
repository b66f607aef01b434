//! The calls of this machine's pfctl(8).

use weft_config::InterfaceName;

use super::super::error::FirewallError;
use super::super::program::Program;
use super::super::{Present, Recognises, Rules};
use super::{Flavor, Pf};

#[cfg(target_os = "freebsd")]
const FLAVOR: Flavor = Flavor::FreeBsd;
#[cfg(target_os = "macos")]
const FLAVOR: Flavor = Flavor::MacOs;

/// By what rules recognise the tunnel's own packets.
pub(crate) const RECOGNISES: Recognises = Recognises::Endpoints;

const PF: Pf<Program> = Pf { flavor: FLAVOR, pfctl: super::PFCTL };

/// Replaces the rules of the interface with exactly these, in one transaction, and sees that they take
/// effect.
///
/// # Errors
/// Those of [`FirewallError`]; the rules are unchanged then.
pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
    PF.apply(rules)
}

/// Checks whether pf would accept and evaluate these rules; nothing is changed.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn check(rules: &Rules) -> Result<(), FirewallError> {
    PF.check(rules)
}

/// Removes everything that [`apply`] can have set for an interface, also in an earlier run of the daemon. It
/// is no error if there is nothing.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn remove(interface: &InterfaceName) -> Result<(), FirewallError> {
    PF.remove(interface)
}

/// Returns the anchor of an interface, if its rules take effect.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn present(interface: &InterfaceName) -> Result<Present, FirewallError> {
    PF.present(interface)
}

/// Returns where the kill switch and the MSS clamp of an interface are.
pub(crate) fn own_place(interface: &InterfaceName) -> String {
    super::place(FLAVOR, interface)
}

/// Returns the command that removes the kill switch of an interface without weft.
pub(crate) fn removing_command(interface: &InterfaceName) -> String {
    super::flushing_command(FLAVOR, interface)
}
