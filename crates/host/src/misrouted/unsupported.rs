//! The substitute on systems whose routing table is not asked yet: nothing is found.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use weft_config::Config;

use super::Misrouted;
use crate::routes::{Family, Netlink, RouteError};

/// Finds nothing.
pub fn in_force(_: &Netlink, _: Option<u32>, _: &Config, _: &[SocketAddr], _: u32, _: u32) -> Vec<Misrouted> {
    Vec::new()
}

/// Finds none.
pub fn leads_back(_: &Netlink, _: &str, _: SocketAddr, _: u32) -> bool {
    false
}

/// Finds nothing.
pub fn predicted(_: &Config, _: &[SocketAddr]) -> Vec<Misrouted> {
    Vec::new()
}

/// Finds nothing.
pub fn dns_predicted(_: &Config) -> Option<Misrouted> {
    None
}

/// Finds nothing.
pub(super) fn forwards(_: Family) -> Option<bool> {
    None
}

/// Finds nothing.
pub(super) fn translated() -> Option<BTreeSet<Family>> {
    None
}

/// Finds nothing.
pub fn local_resolver(_: &Config) -> Option<Misrouted> {
    None
}

/// Finds nothing.
pub(crate) fn in_the_way(_: &Config, _: &[SocketAddr]) -> Vec<RouteError> {
    Vec::new()
}
