//! The substitute for platforms where weft cannot set addresses and routes yet: [`Netlink::open`] fails.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use weft_config::{Interface, InterfaceName};

use super::{FoundRule, Link, QueueLimits, RouteError, Rule};

/// Cannot be constructed.
#[derive(Debug)]
pub struct Netlink {
    never: std::convert::Infallible,
}

impl Netlink {
    /// Always an error.
    pub fn open() -> Result<Self, RouteError> {
        Err(RouteError::Unsupported { action: "configure the network".to_owned() })
    }

    /// Finds a device.
    pub fn link(&self, _: &InterfaceName) -> Result<Link, RouteError> {
        match self.never {}
    }

    /// Sets the MTU of a device.
    pub fn set_mtu(&self, _: &Link, _: u16) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Sets a device up.
    pub fn set_up(&self, _: &Link) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Removes a device.
    pub fn remove_link(&self, _: &Link) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Returns the prefixes that are routed through a device.
    pub fn routes_through(&self, _: &Link) -> Result<HashSet<(IpNet, u32)>, RouteError> {
        match self.never {}
    }

    /// Sets the limits of a device's queue.
    pub fn set_queue_limits(&self, _: &Link, _: QueueLimits) {
        match self.never {}
    }

    /// Returns the MTU of the route to an address.
    pub fn mtu_towards(&self, _: std::net::IpAddr, _: u32) -> Result<u32, RouteError> {
        match self.never {}
    }

    /// Returns the MTU for the device when none is configured.
    pub fn default_mtu(&self, _: &Interface, _: &[SocketAddr], _: u32) -> u16 {
        match self.never {}
    }

    /// Returns the addresses of a device.
    pub fn addresses(&self, _: &Link) -> Result<Vec<IpNet>, RouteError> {
        match self.never {}
    }

    /// Returns the tables that have routes.
    pub fn tables_in_use(&self) -> Result<BTreeSet<u32>, RouteError> {
        match self.never {}
    }

    /// Adds a rule.
    pub fn add_rule(&self, _: &Rule) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Removes a rule.
    pub fn remove_rule(&self, _: &Rule) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Returns all rules.
    pub fn rules(&self) -> Result<Vec<FoundRule>, RouteError> {
        match self.never {}
    }

    /// Adds an address.
    pub fn add_address(&self, _: &Link, _: IpNet) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Removes an address.
    pub fn remove_address(&self, _: &Link, _: IpNet) -> Result<(), RouteError> {
        match self.never {}
    }

    /// Adds a route.
    pub fn add_route(&self, _: &Link, _: IpNet, _: u32) -> Result<bool, RouteError> {
        match self.never {}
    }

    /// Removes a route.
    pub fn remove_route(&self, _: &Link, _: IpNet, _: u32) -> Result<(), RouteError> {
        match self.never {}
    }
}
