//! The tables of Windows, which IP Helper reads and changes.
//!
//! Everything but [`Machine`] is the same on any system, and is tested against tables in memory.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use weft_config::MIN_MTU_IPV6;

use super::tables::{Edit, Refusal, Tables};
use super::{Family, FoundRoute, Link, MAIN_TABLE, RouteError, Via};

#[cfg(windows)]
mod system;

#[cfg(windows)]
pub(crate) use system::System;

/// What the calls of this module need of the system. An interface is named by its LUID.
pub trait Machine {
    /// Returns the LUID of the interface that has an index.
    fn luid(&self, index: u32) -> Result<u64, Refusal>;

    /// Returns all interfaces.
    fn adapters(&self) -> Result<Vec<Adapter>, Refusal>;

    /// Returns the settings of a protocol on an interface; [`Refusal::Gone`] where it is switched off.
    fn settings(&self, luid: u64, family: Family) -> Result<Settings, Refusal>;

    /// The same, for an interface that was just created: waits until the system has bound the protocol to it.
    fn settings_of_new(&self, luid: u64, family: Family) -> Result<Settings, Refusal>;

    /// Changes the settings of a protocol on an interface.
    fn set(&self, luid: u64, family: Family, settings: &Settings) -> Result<(), Refusal>;

    /// Returns the routes of both families.
    fn routes(&self) -> Result<Vec<Row>, Refusal>;

    /// Adds a route.
    fn create_route(&self, row: &Row) -> Result<(), Refusal>;

    /// Removes a route.
    fn delete_route(&self, row: &Row) -> Result<(), Refusal>;

    /// Returns the addresses of all interfaces, of both families.
    fn addresses(&self) -> Result<Vec<(u64, IpNet)>, Refusal>;

    /// Adds an address, which can be used at once: it is not looked for in the network (DAD).
    fn create_address(&self, luid: u64, address: IpNet) -> Result<(), Refusal>;

    /// Removes an address.
    fn delete_address(&self, luid: u64, address: IpAddr) -> Result<(), Refusal>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    pub luid: u64,
    pub index: u32,
    /// The alias, such as `Ethernet`.
    pub name: String,
    /// The MTU of the link, in bytes.
    pub mtu: u32,
    pub is_up: bool,
    pub is_loopback: bool,
}

/// The settings of a protocol on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// In bytes.
    pub mtu: u32,
    /// Added to the metrics of its routes.
    pub metric: u32,
    /// Whether the system chooses the metric.
    pub is_metric_automatic: bool,
    /// How often an address is looked for in the network before it is used.
    pub dad_transmits: u32,
    /// Whether routers are asked for addresses and routes.
    pub asks_routers: bool,
}

/// A route. There may be several to one prefix: the one with the smallest metric is used, to which that of
/// the interface is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub luid: u64,
    pub prefix: IpNet,
    /// The gateway; unspecified for a network of the interface.
    pub next_hop: IpAddr,
    pub metric: u32,
}

/// The tables of a machine.
#[derive(Debug)]
pub struct IpHelper<M> {
    pub(crate) machine: M,
}

impl<M: Machine> Tables for IpHelper<M> {
    fn link(&self, name: &str) -> Result<Link, RouteError> {
        let adapters = self.machine.adapters().map_err(|refusal| unread("interfaces", refusal))?;
        let adapter = adapters.into_iter().find(|adapter| adapter.name == name);
        let adapter = adapter.ok_or_else(|| RouteError::NoLink(name.to_owned()))?;
        Ok(Link { name: name.to_owned(), index: adapter.index, mtu: self.mtu_of(&adapter) })
    }

    fn name(&self, index: u32) -> Option<String> {
        let adapters = self.machine.adapters().ok()?;
        adapters.into_iter().find(|adapter| adapter.index == index).map(|adapter| adapter.name)
    }

    fn mtu(&self, interface: &str) -> Option<u32> {
        let adapters = self.machine.adapters().ok()?;
        let adapter = adapters.iter().find(|adapter| adapter.name == interface)?;
        Some(self.mtu_of(adapter))
    }

    fn addresses(&self, link: &Link) -> Result<Vec<IpNet>, RouteError> {
        let read = || {
            let luid = self.machine.luid(link.index)?;
            let addresses = self.machine.addresses()?.into_iter();
            Ok(addresses.filter(|(of, _)| *of == luid).map(|(_, address)| address).collect())
        };
        read().map_err(|refusal| unread("addresses", refusal))
    }

    fn routes(&self, table: u32) -> Result<Vec<FoundRoute>, RouteError> {
        if table != MAIN_TABLE {
            return Ok(Vec::new());
        }
        self.found().map_err(|refusal| unread("routes", refusal))
    }

    fn edit(&self, edit: &Edit<'_>) -> Result<(), Refusal> {
        match *edit {
            Edit::SetMtu(link, mtu) => self.set_mtu(self.machine.luid(link.index)?, mtu.into()),
            // An adapter of Wintun is up as long as it is open, and goes with its process.
            Edit::SetUp(_) | Edit::RemoveLink(_) => Ok(()),
            Edit::AddAddress(link, address) => self.add_address(self.machine.luid(link.index)?, address),
            Edit::RemoveAddress(link, address) => {
                self.machine.delete_address(self.machine.luid(link.index)?, address.addr())
            }
            Edit::AddRoute(_, _, table) if table != MAIN_TABLE => {
                Err(Refusal::Failed(io::Error::new(io::ErrorKind::Unsupported, ONE_TABLE)))
            }
            Edit::AddRoute(link, prefix, _) => {
                self.add_route(&own_route(self.machine.luid(link.index)?, prefix))
            }
            Edit::RemoveRoute(link, prefix, _) => {
                self.remove_route(&own_route(self.machine.luid(link.index)?, prefix))
            }
            Edit::AddEndpointRoute(address, via) => {
                self.machine.create_route(&self.endpoint_route(address, via)?)
            }
            Edit::RemoveEndpointRoute(address, via) => {
                self.machine.delete_route(&self.endpoint_route(address, via)?)
            }
        }
    }

    fn refused(&self, edit: &Edit<'_>, refusal: Refusal) -> RouteError {
        let (error, advice) = match refusal {
            Refusal::Exists => (
                io::ErrorKind::AlreadyExists.into(),
                "another interface has it: remove it there (`Get-NetIPAddress`), or change the configuration",
            ),
            Refusal::Gone => (io::ErrorKind::NotFound.into(), advice_if_gone(edit)),
            Refusal::Failed(error) => {
                let advice = match (error.kind(), edit) {
                    (io::ErrorKind::PermissionDenied, _) => "run weft as an administrator",
                    (_, Edit::AddRoute(_, _, table)) if *table != MAIN_TABLE => {
                        "set `Table` to `auto` or `off`"
                    }
                    (io::ErrorKind::Unsupported, _) => "weft needs Windows 10 or later",
                    _ => "see `Get-NetIPConfiguration` and `Get-NetRoute`",
                };
                (error, advice)
            }
        };
        RouteError::Refused { action: edit.to_string(), error, advice }
    }
}

const ONE_TABLE: &str = "Windows has one routing table";

/// The interface is there, or the device would have been missed: so its protocol is not.
fn advice_if_gone(edit: &Edit<'_>) -> &'static str {
    let family = match edit {
        Edit::AddAddress(_, net) | Edit::AddRoute(_, net, _) => Family::of(*net),
        _ => return "the interface is gone: see `Get-NetIPInterface`",
    };
    match family {
        Family::V4 => {
            "IPv4 is switched off there: switch it on (`Enable-NetAdapterBinding -Name * -ComponentID ms_tcpip`), or \
             remove the IPv4 addresses and AllowedIPs from the configuration"
        }
        Family::V6 => {
            "IPv6 is switched off there: switch it on (`Enable-NetAdapterBinding -Name * -ComponentID ms_tcpip6`, \
             and DisabledComponents in the registry), or remove the IPv6 addresses and AllowedIPs from the configuration"
        }
    }
}

impl<M: Machine> IpHelper<M> {
    /// Returns the MTU of IPv4, else of IPv6, else of the link: that of Wintun's link is 65,535 always.
    pub(crate) fn mtu_of(&self, adapter: &Adapter) -> u32 {
        let of = |family| Some(self.machine.settings(adapter.luid, family).ok()?.mtu);
        Family::ALL.into_iter().find_map(of).unwrap_or(adapter.mtu)
    }

    /// Returns the routes, the preferred ones last.
    fn found(&self) -> Result<Vec<FoundRoute>, Refusal> {
        let adapters = self.machine.adapters()?;
        let adapters: HashMap<u64, &Adapter> =
            adapters.iter().map(|adapter| (adapter.luid, adapter)).collect();
        let mut metrics: HashMap<(u64, Family), u32> = HashMap::new();
        let mut found = Vec::new();
        for row in self.machine.routes()? {
            // The interface may have come after its table was read.
            let Some(adapter) = adapters.get(&row.luid) else { continue };
            let family = Family::of(row.prefix);
            let metric = metrics.entry((row.luid, family)).or_insert_with(|| {
                self.machine.settings(row.luid, family).map_or(0, |settings| settings.metric)
            });
            let route = FoundRoute { prefix: row.prefix, via: via(&row, adapter), is_up: adapter.is_up };
            found.push((Reverse(metric.saturating_add(row.metric)), route));
        }
        found.sort_by_key(|(metric, _)| *metric);
        Ok(found.into_iter().map(|(_, route)| route).collect())
    }

    /// Sets the MTU of both protocols, or of none.
    fn set_mtu(&self, luid: u64, mtu: u32) -> Result<(), Refusal> {
        let with_mtu = |family, settings| {
            // What is less is refused for IPv6 (RFC 8200, section 5). It has no addresses then.
            let least = if family == Family::V6 { MIN_MTU_IPV6.into() } else { 0 };
            Settings { mtu: mtu.max(least), ..settings }
        };
        let v4 = self.machine.settings_of_new(luid, Family::V4);
        let mut before = Vec::new();
        for (family, settings) in [(Family::V4, v4), (Family::V6, self.machine.settings(luid, Family::V6))] {
            let changed = settings.and_then(|settings| {
                self.machine.set(luid, family, &with_mtu(family, tuned(settings)))?;
                Ok(settings)
            });
            match changed {
                Ok(settings) => before.push((family, settings)),
                // Nothing is sent over a protocol that is switched off.
                Err(Refusal::Gone) => {}
                Err(refusal) => {
                    for (family, settings) in before {
                        warn_of(self.machine.set(luid, family, &settings));
                    }
                    return Err(refusal);
                }
            }
        }
        if before.is_empty() { Err(Refusal::Gone) } else { Ok(()) }
    }

    fn add_address(&self, luid: u64, address: IpNet) -> Result<(), Refusal> {
        let family = Family::of(address);
        let settings = self.machine.settings_of_new(luid, family)?;
        self.machine.set(luid, family, &tuned(settings))?;
        match self.machine.create_address(luid, address) {
            Err(Refusal::Exists) if self.machine.addresses()?.contains(&(luid, address)) => Ok(()),
            created => created,
        }
    }

    fn add_route(&self, row: &Row) -> Result<(), Refusal> {
        self.machine.settings_of_new(row.luid, Family::of(row.prefix))?;
        self.machine.create_route(row)?;
        if !is_half(row.prefix) {
            return Ok(());
        }
        // Windows asks the name servers of the interface with the smallest metric first, and prefers its
        // routes.
        self.set_metric(row, Some(0)).inspect_err(|_| warn_of(self.machine.delete_route(row)))
    }

    fn remove_route(&self, row: &Row) -> Result<(), Refusal> {
        let is_other_half = |other: &Row| {
            let is_of_device = other.luid == row.luid && Family::of(other.prefix) == Family::of(row.prefix);
            is_of_device && is_half(other.prefix) && other.prefix != row.prefix
        };
        let is_last_half = is_half(row.prefix) && !self.machine.routes()?.iter().any(is_other_half);
        if !is_last_half {
            return self.machine.delete_route(row);
        }
        self.set_metric(row, None)?;
        let deleted = self.machine.delete_route(row);
        if let Err(Refusal::Failed(_)) = deleted {
            warn_of(self.set_metric(row, Some(0)));
        }
        deleted
    }

    /// Sets the metric of the interface of a route; `None`: the system chooses it.
    fn set_metric(&self, row: &Row, metric: Option<u32>) -> Result<(), Refusal> {
        let family = Family::of(row.prefix);
        let before = self.machine.settings(row.luid, family)?;
        let settings = Settings {
            metric: metric.unwrap_or(before.metric),
            is_metric_automatic: metric.is_none(),
            ..before
        };
        if settings == before { Ok(()) } else { self.machine.set(row.luid, family, &settings) }
    }

    fn endpoint_route(&self, address: IpAddr, via: &Via) -> Result<Row, Refusal> {
        let adapters = self.machine.adapters()?;
        let find = |is_it: &dyn Fn(&Adapter) -> bool| {
            adapters.iter().find(|adapter| is_it(adapter)).map(|found| found.luid).ok_or(Refusal::Gone)
        };
        let (luid, next_hop) = match via {
            Via::Gateway { address, interface } => (find(&|adapter| adapter.name == *interface)?, *address),
            Via::Interface(interface) => {
                (find(&|adapter| adapter.name == *interface)?, unspecified(address.is_ipv4()))
            }
            // There are no routes to nowhere. The loopback interface drops what is not for this machine.
            Via::Blackhole => (find(&|adapter| adapter.is_loopback)?, unspecified(address.is_ipv4())),
        };
        Ok(Row { luid, prefix: address.into(), next_hop, metric: 0 })
    }
}

/// Returns the settings that suit a tunnel, in which no router and no other owner of an address answers.
fn tuned(settings: Settings) -> Settings {
    Settings { dad_transmits: 0, asks_routers: false, ..settings }
}

/// Reports whether a prefix is a half of the default route, or the default route.
fn is_half(prefix: IpNet) -> bool {
    prefix.prefix_len() <= 1
}

fn own_route(luid: u64, prefix: IpNet) -> Row {
    let prefix = prefix.trunc();
    Row { luid, prefix, next_hop: unspecified(prefix.addr().is_ipv4()), metric: 0 }
}

fn unspecified(is_ipv4: bool) -> IpAddr {
    if is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn via(row: &Row, adapter: &Adapter) -> Via {
    let interface = adapter.name.clone();
    if adapter.is_loopback && !row.prefix.addr().is_loopback() {
        Via::Blackhole
    } else if row.next_hop.is_unspecified() {
        Via::Interface(interface)
    } else {
        Via::Gateway { address: row.next_hop, interface }
    }
}

fn warn_of(undone: Result<(), Refusal>) {
    if let Err(refusal) = undone {
        tracing::warn!("while taking back a change that failed: {refusal:?}");
    }
}

fn unread(what: &str, refusal: Refusal) -> RouteError {
    let error = match refusal {
        Refusal::Failed(error) => error,
        Refusal::Exists | Refusal::Gone => io::ErrorKind::NotFound.into(),
    };
    RouteError::Refused {
        action: format!("list the {what}"),
        error,
        advice: "see `Get-NetIPConfiguration` and `Get-NetRoute`",
    }
}

#[cfg(test)]
#[path = "windows/simulation.rs"]
pub(crate) mod simulation;
#[cfg(test)]
#[path = "windows/tests.rs"]
mod tests;
