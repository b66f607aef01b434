//! Addresses, routes and link settings on macOS and FreeBSD: read from the kernel's routing table, changed by
//! ifconfig(8) and route(8).
//!
//! Everything but [`Machine`] is the same on any system, and is tested against tables in memory.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use weft_config::{Interface, InterfaceName, MAX_MTU, MIN_MTU, MIN_MTU_IPV6, OVERHEAD};

use self::commands::{Answer, Call, Refusal, Shown};
use super::{FoundRoute, FoundRule, Link, MAIN_TABLE, QueueLimits, RouteError, Routing, Rule, Via};

pub(crate) mod commands;
pub(crate) mod message;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
mod system;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub(crate) use system::{LAYOUT, System};

/// The MTU of an Ethernet link, used when nothing better is known.
const USUAL_MTU: u32 = 1500;

/// What the calls of this module need of the system.
pub trait Machine {
    /// Runs a program and waits for its end.
    fn run(&self, call: &Call) -> io::Result<Answer>;

    /// Returns the routes that packets are looked up by; `table`: [`MAIN_TABLE`], or a FIB.
    fn routes(&self, table: u32) -> io::Result<Vec<FoundRoute>>;

    /// Returns the index of an interface.
    fn index(&self, name: &str) -> Option<u32>;
}

/// The network configuration of the system.
#[derive(Debug)]
pub struct Configurator<M> {
    machine: M,
}

impl<M: Machine> Configurator<M> {
    pub(crate) fn new(machine: M) -> Self {
        Self { machine }
    }

    /// Finds a device.
    pub fn link(&self, name: &InterfaceName) -> Result<Link, RouteError> {
        let name = name.as_str();
        let index = self.machine.index(name).ok_or_else(|| RouteError::NoLink(name.to_owned()))?;
        let mtu = self.show(name)?.mtu.unwrap_or(USUAL_MTU);
        Ok(Link { name: name.to_owned(), index, mtu })
    }

    /// Sets the MTU of a device.
    pub fn set_mtu(&self, link: &Link, mtu: u16) -> Result<(), RouteError> {
        self.change(&commands::set_mtu(&link.name, mtu))
    }

    /// Sets a device up.
    pub fn set_up(&self, link: &Link) -> Result<(), RouteError> {
        self.change(&commands::set_up(&link.name))
    }

    /// Removes a device. It is no error if the device is gone already.
    pub fn remove_link(&self, link: &Link) -> Result<(), RouteError> {
        self.remove(&commands::destroy(&link.name))
    }

    /// Does nothing: the system has no such limits.
    #[allow(clippy::unused_self, reason = "other systems have them")]
    pub fn set_queue_limits(&self, _: &Link, _: QueueLimits) {}

    /// Adds an address to a device.
    pub fn add_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        self.change(&commands::add_address(&link.name, address))
    }

    /// Removes an address. It is no error if the address is gone already.
    pub fn remove_address(&self, link: &Link, address: IpNet) -> Result<(), RouteError> {
        self.remove(&commands::remove_address(&link.name, address))
    }

    /// Returns the addresses of a device, including those that the kernel assigned.
    pub fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError> {
        Ok(self.show(&link.name)?.addresses)
    }

    /// Adds a route to a prefix through a device. Returns whether that was needed: an existing route through
    /// the same device stays as it is.
    pub fn add_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<bool, RouteError> {
        let call = commands::add_route(&link.name, prefix, table);
        match self.run(&call) {
            Ok(_) => Ok(true),
            Err(Refusal::Exists) if self.routes_of(link, table)?.contains(&prefix) => Ok(false),
            Err(refusal) => Err(refused(&call, refusal)),
        }
    }

    /// Removes a route. It is no error if the route is gone already.
    pub fn remove_route(&self, link: &Link, prefix: IpNet, table: u32) -> Result<(), RouteError> {
        self.remove(&commands::remove_route(&link.name, prefix, table))
    }

    /// Adds the host route of an endpoint. Returns whether that was needed.
    pub fn add_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<bool, RouteError> {
        let call = commands::add_endpoint_route(address, via);
        match self.run(&call) {
            Ok(_) => Ok(true),
            // Another program leads the endpoint past the tunnel.
            Err(Refusal::Exists) => Ok(false),
            Err(refusal) => Err(refused(&call, refusal)),
        }
    }

    /// Removes the host route of an endpoint, unless it leads elsewhere by now: then it is not weft's. It is
    /// no error if it is gone already, as after its interface lost its address.
    pub fn remove_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<(), RouteError> {
        if !self.has_endpoint_route(address, via)? {
            return Ok(());
        }
        self.remove(&commands::remove_endpoint_route(address, via))
    }

    /// Reports whether the host route of an endpoint is in force.
    pub fn has_endpoint_route(&self, address: IpAddr, via: &Via) -> Result<bool, RouteError> {
        let wanted = FoundRoute { prefix: IpNet::from(address), via: via.clone() };
        Ok(self.routes(MAIN_TABLE)?.contains(&wanted))
    }

    /// Returns the prefixes that are routed through a device in the main table.
    pub fn routes_through(&self, link: &Link) -> Result<HashSet<(IpNet, u32)>, RouteError> {
        let routes = self.routes_of(link, MAIN_TABLE)?;
        Ok(routes.into_iter().map(|prefix| (prefix, MAIN_TABLE)).collect())
    }

    /// Returns how a default route is made here.
    pub fn routing(&self) -> Result<Routing, RouteError> {
        self.routes(MAIN_TABLE).map(Routing::Halves)
    }

    /// Returns nothing: tables are not chosen here.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "other systems have them")]
    pub fn tables_in_use(&self) -> Result<BTreeSet<u32>, RouteError> {
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

    /// Returns the MTU of the interface that leads to an address; the mark does not matter.
    pub fn mtu_towards(&self, destination: IpAddr, _: u32) -> Result<u32, RouteError> {
        let routes = self.routes(MAIN_TABLE)?;
        let via = best(&routes, destination).and_then(|via| via.interface());
        Ok(via.and_then(|name| self.show(name).ok()?.mtu).unwrap_or(USUAL_MTU))
    }

    /// Returns the MTU for the device when none is configured: the smallest MTU of the interfaces that lead
    /// to the endpoints, else of those with a default route, else 1500; less the 80 bytes that the tunnel
    /// adds; at least 1280 with an IPv6 address. `_` is the mark, which does not matter here.
    pub fn default_mtu(&self, interface: &Interface, endpoints: &[SocketAddr], _: u32) -> u16 {
        let mut routes = self.routes(MAIN_TABLE).unwrap_or_default();
        routes.retain(|route| route.via.interface() != Some(interface.name.as_str()));
        let mut mtus: HashMap<String, Option<u32>> = HashMap::new();
        let mut mtu_of = |via: &Via| {
            let name = via.interface()?;
            *mtus.entry(name.to_owned()).or_insert_with(|| self.show(name).ok()?.mtu)
        };
        let ways: BTreeSet<&Via> =
            endpoints.iter().filter_map(|endpoint| best(&routes, endpoint.ip())).collect();
        let towards = ways.into_iter().filter_map(&mut mtu_of).min();
        let default = || {
            let defaults = routes.iter().filter(|route| route.prefix.prefix_len() == 0);
            defaults.filter_map(|route| mtu_of(&route.via)).min()
        };
        let outer = towards.or_else(default).unwrap_or(USUAL_MTU);
        let has_ipv6 = interface.addresses.iter().any(|address| matches!(address, IpNet::V6(_)));
        let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
        let inner = outer.saturating_sub(OVERHEAD.into());
        u16::try_from(inner).unwrap_or(MAX_MTU).clamp(least, MAX_MTU)
    }

    fn routes(&self, table: u32) -> Result<Vec<FoundRoute>, RouteError> {
        self.machine.routes(table).map_err(|error| RouteError::Refused {
            action: "list the routes".to_owned(),
            error,
            advice: "see `netstat -rn`",
        })
    }

    fn routes_of(&self, link: &Link, table: u32) -> Result<HashSet<IpNet>, RouteError> {
        let routes = self.routes(table)?.into_iter();
        let own = routes.filter(|route| route.via.interface() == Some(link.name.as_str()));
        Ok(own.map(|route| route.prefix).collect())
    }

    fn show(&self, device: &str) -> Result<Shown, RouteError> {
        let call = commands::show(device);
        self.run(&call).map(|text| commands::shown(&text)).map_err(|refusal| refused(&call, refusal))
    }

    fn change(&self, call: &Call) -> Result<(), RouteError> {
        self.run(call).map(drop).map_err(|refusal| refused(call, refusal))
    }

    fn remove(&self, call: &Call) -> Result<(), RouteError> {
        match self.run(call) {
            Ok(_) | Err(Refusal::Gone) => Ok(()),
            Err(refusal) => Err(refused(call, refusal)),
        }
    }

    fn run(&self, call: &Call) -> Result<String, Refusal> {
        self.machine.run(call).map_err(Refusal::Failed).and_then(commands::outcome)
    }
}

/// Returns where the most specific route to an address leads.
fn best(routes: &[FoundRoute], destination: IpAddr) -> Option<&Via> {
    let containing = routes.iter().filter(|route| route.prefix.contains(&destination));
    containing.max_by_key(|route| route.prefix.prefix_len()).map(|route| &route.via)
}

fn refused(call: &Call, refusal: Refusal) -> RouteError {
    let (error, advice) = match refusal {
        Refusal::Exists => (
            io::ErrorKind::AlreadyExists.into(),
            "it is there already, made by another program: remove that one, or set `Table = off`",
        ),
        Refusal::Gone => {
            (io::ErrorKind::NotFound.into(), "the interface is gone, or the address is not of this machine")
        }
        Refusal::Failed(error) => {
            let advice = match error.kind() {
                io::ErrorKind::PermissionDenied => "run weft as root",
                io::ErrorKind::NotFound => "the program belongs to the system: see PATH",
                _ if call.arguments.iter().any(|word| word == "inet6" || word == "-inet6") => {
                    "where IPv6 is switched off, remove the IPv6 addresses and AllowedIPs from the configuration"
                }
                _ => "see `ifconfig` and `netstat -rn`",
            };
            (error, advice)
        }
    };
    RouteError::Refused { action: format!("run `{call}`"), error, advice }
}

#[cfg(test)]
#[path = "bsd/tests.rs"]
pub(crate) mod tests;
