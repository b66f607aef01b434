//! Addresses, routes and link settings where routing does not look at marks: on macOS, FreeBSD and Windows.
//!
//! What to change, and what a refusal means, is the same on these systems; [`Tables`] is what differs.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use weft_config::{Config, InterfaceName, tunnel_mtu};

use super::{
    DeviceState, FoundRoute, FoundRule, Link, MAIN_TABLE, QueueLimits, RouteError, Routing, Rule, USUAL_MTU,
    Via, link_of,
};

/// The tables of a system.
pub trait Tables {
    /// Finds a device.
    fn link(&self, name: &str) -> Result<Link, RouteError>;

    /// Returns the name of the interface that has an index.
    fn name(&self, index: u32) -> Option<String>;

    /// Returns the MTU of an interface, if it is known.
    fn mtu(&self, interface: &str) -> Option<u32>;

    /// Returns the addresses of a device, including those that the system assigned.
    fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError>;

    /// Returns the routes that packets are looked up by, in the order that [`Routing::Halves`] has;
    /// `table`: [`MAIN_TABLE`], or a FIB.
    fn routes(&self, table: u32) -> Result<Vec<FoundRoute>, RouteError>;

    /// Makes one change, or none if it fails.
    fn edit(&self, edit: &Edit<'_>) -> Result<(), Refusal>;

    /// Says why a change was not made, and what to do.
    fn refused(&self, edit: &Edit<'_>, refusal: Refusal) -> RouteError;
}

/// A change of a table.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    SetMtu(&'a Link, u16),
    SetUp(&'a Link),
    RemoveLink(&'a Link),
    AddAddress(&'a Link, IpNet),
    RemoveAddress(&'a Link, IpNet),
    AddRoute(&'a Link, IpNet, u32),
    RemoveRoute(&'a Link, IpNet, u32),
    AddEndpointRoute(IpAddr, &'a Via),
    RemoveEndpointRoute(IpAddr, &'a Via),
}

impl fmt::Display for Edit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetMtu(link, mtu) => write!(f, "set the MTU of {} to {mtu}", link.name),
            Self::SetUp(link) => write!(f, "set {} up", link.name),
            Self::RemoveLink(link) => write!(f, "remove {}", link.name),
            Self::AddAddress(link, address) => write!(f, "add the address {address} to {}", link.name),
            Self::RemoveAddress(link, address) => {
                write!(f, "remove the address {address} from {}", link.name)
            }
            Self::AddRoute(link, prefix, _) => write!(f, "add the route {prefix} dev {}", link.name),
            Self::RemoveRoute(link, prefix, _) => write!(f, "remove the route {prefix} dev {}", link.name),
            Self::AddEndpointRoute(address, via) => write!(f, "add the endpoint route {address} {via}"),
            Self::RemoveEndpointRoute(address, via) => {
                write!(f, "remove the endpoint route {address} {via}")
            }
        }
    }
}

/// Why a change was not made.
#[derive(Debug)]
pub enum Refusal {
    /// It is there already.
    Exists,
    /// It is not there, or its device is not.
    Gone,
    Failed(io::Error),
}

/// The network configuration of the system.
#[derive(Debug)]
pub struct Configurator<T> {
    pub(crate) tables: T,
}

impl<T: Tables> Configurator<T> {
    pub(crate) fn new(tables: T) -> Self {
        Self { tables }
    }

    /// Finds a device.
    pub fn link(&self, name: &InterfaceName) -> Result<Link, RouteError> {
        self.tables.link(name.as_str())
    }

    /// Sets the MTU of a device.
    pub fn set_mtu(&self, link: &Link, mtu: u16) -> Result<(), RouteError> {
        self.change(&Edit::SetMtu(link, mtu))
    }

    /// Sets a device up.
    pub fn set_up(&self, link: &Link) -> Result<(), RouteError> {
        self.change(&Edit::SetUp(link))
    }

    /// Removes a device. It is no error if the device is gone already.
    pub fn remove_link(&self, link: &Link) -> Result<(), RouteError> {
        self.remove(&Edit::RemoveLink(link))
    }

    /// Does nothing: the system has no such limits.
    #[allow(clippy::unused_self, reason = "other systems have them")]
    pub fn set_queue_limits(&self, _: &Link, _: QueueLimits) {}

    /// Does nothing: the system adds an address with its route.
    #[allow(clippy::unused_self, reason = "other systems have to wait")]
    pub fn settle_addresses(&self, _: &Link) {}

    /// Returns the state of a device, which has its name: what other programs change is not looked after
    /// here, but for its MTU.
    pub fn device_state(&self, link: &Link) -> Result<Option<DeviceState>, RouteError> {
        let Link { name, mtu, .. } = self.tables.link(&link.name)?;
        Ok(Some(DeviceState { name, is_tun: true, is_up: true, mtu }))
    }

    /// Does nothing, see [`Self::device_state`].
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "Linux has it")]
    pub fn rename(&self, _: &Link) -> Result<(), RouteError> {
        Ok(())
    }

    /// Does nothing, see [`Self::make_silent`].
    #[allow(clippy::unused_self, reason = "Linux has it")]
    pub fn generate_no_address(&self, _: &Link) {}

    /// Does nothing: a tunnel has no such traffic here.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have it")]
    pub fn make_silent(&self, _: &Link) -> Result<(), RouteError> {
        Ok(())
    }

    /// Adds an address to a device.
    pub fn add_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        self.change(&Edit::AddAddress(link, address))
    }

    /// Removes an address. It is no error if the address is gone already.
    pub fn remove_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        self.remove(&Edit::RemoveAddress(link, address))
    }

    /// Returns the addresses of a device, including those that the kernel assigned.
    pub fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError> {
        self.tables.addresses(link)
    }

    /// Adds a route to a prefix through a device. Returns whether that was needed: an existing route through
    /// the same device stays as it is.
    pub fn add_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<bool, RouteError> {
        let edit = Edit::AddRoute(link, prefix, table);
        match self.tables.edit(&edit) {
            Ok(()) => Ok(true),
            Err(Refusal::Exists) if self.routes_of(link, table)?.contains(&prefix) => Ok(false),
            Err(refusal) => Err(self.tables.refused(&edit, refusal)),
        }
    }

    /// Adds a route: rules lead to no table here in which it might replace another one.
    pub fn replace_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<(), RouteError> {
        self.add_route(link, prefix, table).map(drop)
    }

    /// Removes a route. It is no error if the route is gone already.
    pub fn remove_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<(), RouteError> {
        self.remove(&Edit::RemoveRoute(link, prefix, table))
    }

    /// Adds the host route of an endpoint. Returns whether that was needed.
    pub fn add_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<bool, RouteError> {
        let edit = Edit::AddEndpointRoute(address, via);
        match self.tables.edit(&edit) {
            Ok(()) => Ok(true),
            // Another program leads the endpoint past the tunnel.
            Err(Refusal::Exists) => Ok(false),
            Err(refusal) => Err(self.tables.refused(&edit, refusal)),
        }
    }

    /// Removes the host route of an endpoint, unless it leads elsewhere by now: then it is not weft's. It is
    /// no error if it is gone already, as after its interface lost its address.
    pub fn remove_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<(), RouteError> {
        if !self.has_endpoint_route(address, via)? {
            return Ok(());
        }
        self.remove(&Edit::RemoveEndpointRoute(address, via))
    }

    /// Reports whether the host route of an endpoint is in force.
    pub fn has_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<bool, RouteError> {
        Ok(self.tables.routes(MAIN_TABLE)?.iter().any(|route| route.is_host_route(address, via)))
    }

    /// Returns the prefixes that are routed through a device in the main table.
    pub fn routes_through(&self, link: &Link) -> Result<HashSet<(IpNet, u32)>, RouteError> {
        let routes = self.routes_of(link, MAIN_TABLE)?;
        Ok(routes.into_iter().map(|prefix| (prefix, MAIN_TABLE)).collect())
    }

    /// Returns how a default route is made here.
    pub fn routing(&self) -> Result<Routing, RouteError> {
        self.tables.routes(MAIN_TABLE).map(Routing::Halves)
    }

    /// Returns nothing: tables are not chosen here.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn tables_in_use(&self) -> Result<BTreeSet<u32>, RouteError> {
        Ok(BTreeSet::new())
    }

    /// Returns nothing, see [`Self::tables_in_use`].
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub(crate) fn tables_into_tunnels(&self) -> Result<BTreeSet<u32>, RouteError> {
        Ok(BTreeSet::new())
    }

    /// Always an error: the system has no rules.
    pub fn add_rule(&self, _: &Rule) -> Result<(), RouteError> {
        Err(RouteError::Unsupported { action: "add a rule".to_owned() })
    }

    /// Does nothing: the system has no rules.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn remove_rule(&self, _: &Rule) -> Result<(), RouteError> {
        Ok(())
    }

    /// Returns nothing: the system has no rules.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn rules(&self) -> Result<Vec<FoundRule>, RouteError> {
        Ok(Vec::new())
    }

    /// Returns the MTU of the interface that leads to an address; the mark does not matter. A program on this
    /// machine, such as a relay, sends packets on by routes that are not known: the MTU is that of the
    /// default route then, or 1500.
    pub fn mtu_towards(&self, destination: SocketAddr, _: u32) -> Result<u32, RouteError> {
        let routes = self.tables.routes(MAIN_TABLE)?;
        let way = match self.way(&routes, destination) {
            Some(name) if !is_loopback(&name) && !destination.ip().is_loopback() => Some(name),
            _ => uplinks(&routes).next().map(str::to_owned),
        };
        Ok(way.and_then(|name| self.tables.mtu(&name)).unwrap_or(USUAL_MTU))
    }

    /// Returns the MTU for the device when none is configured: the smallest MTU of the interfaces that lead
    /// to the endpoints, else of those with a default route, else 1500; less the 80 bytes that the tunnel
    /// adds; at least 1280 with IPv6 in the tunnel. An endpoint on this machine counts as in
    /// [`Self::mtu_towards`]. `_` is the mark, which does not matter here.
    pub fn default_mtu(&self, config: &Config, endpoints: &[SocketAddr], _: u32) -> u16 {
        let mut routes = self.tables.routes(MAIN_TABLE).unwrap_or_default();
        routes.retain(|route| route.is_up && route.via.interface() != Some(config.interface.name.as_str()));
        let ways: BTreeSet<String> =
            endpoints.iter().filter_map(|endpoint| self.way(&routes, *endpoint)).collect();
        let is_here = |endpoint: &SocketAddr| endpoint.ip().is_loopback();
        let has_relay = endpoints.iter().any(is_here) || ways.iter().any(|name| is_loopback(name));
        let mtu_of = |name: &str| self.tables.mtu(name);
        let towards = ways.iter().filter(|name| !is_loopback(name)).filter_map(|name| mtu_of(name)).min();
        let default = || uplinks(&routes).filter_map(mtu_of).min();
        let outer = match towards {
            Some(towards) if has_relay => towards.min(default().unwrap_or(USUAL_MTU)),
            Some(towards) => towards,
            None => default().unwrap_or(USUAL_MTU),
        };
        tunnel_mtu(outer, config.carries_ipv6())
    }

    /// Returns the interface that packets to an address leave by.
    fn way(&self, routes: &[FoundRoute], destination: SocketAddr) -> Option<String> {
        if let Some(link) = link_of(destination) {
            return self.tables.name(link);
        }
        Some(best(routes, destination.ip())?.interface()?.to_owned())
    }

    fn routes_of(&self, link: &Link, table: u32) -> Result<HashSet<IpNet>, RouteError> {
        let routes = self.tables.routes(table)?.into_iter();
        let own = routes.filter(|route| route.via.interface() == Some(link.name.as_str()));
        Ok(own.map(|route| route.prefix).collect())
    }

    fn change(&self, edit: &Edit<'_>) -> Result<(), RouteError> {
        self.tables.edit(edit).map_err(|refusal| self.tables.refused(edit, refusal))
    }

    fn remove(&self, edit: &Edit<'_>) -> Result<(), RouteError> {
        match self.tables.edit(edit) {
            Ok(()) | Err(Refusal::Gone) => Ok(()),
            Err(refusal) => Err(self.tables.refused(edit, refusal)),
        }
    }
}

/// Returns where the most specific route to an address leads.
fn best(routes: &[FoundRoute], destination: IpAddr) -> Option<&Via> {
    let containing = routes.iter().filter(|route| route.is_up && route.prefix.contains(&destination));
    containing.max_by_key(|route| route.prefix.prefix_len()).map(|route| &route.via)
}

/// Returns the interfaces that default routes lead to.
fn uplinks(routes: &[FoundRoute]) -> impl Iterator<Item = &str> {
    let defaults = routes.iter().filter(|route| route.is_up && route.prefix.prefix_len() == 0);
    defaults.filter_map(|route| route.via.interface())
}

/// Reports whether an interface is a loopback: `lo0`, or the pseudo-interface of Windows.
fn is_loopback(name: &str) -> bool {
    let number = name.strip_prefix("lo").is_some_and(|number| number.parse::<u8>().is_ok());
    number || name.starts_with("Loopback Pseudo-Interface")
}

#[cfg(test)]
#[path = "tables_tests.rs"]
pub(crate) mod tests;
