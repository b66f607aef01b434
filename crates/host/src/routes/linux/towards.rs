//! Asks the kernel where packets to an address go.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType,
};
use weft_config::endpoint::host;

use super::mtu::{devices_of, priority_of};
use super::{Failure, Netlink, RouteError, device_of, family, net_of, table_of};
use crate::routes::{MAIN_TABLE, link_of};

/// The kernel's answer to where packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// The interface that they leave through, if they do.
    pub device: Option<String>,
    /// Whether they go to this machine.
    pub is_local: bool,
    /// The table that has the route.
    pub table: u32,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MainRoute {
    pub prefix: IpNet,
    /// Of several routes to a prefix, the one with the smallest metric is used.
    pub metric: u32,
    /// The interface, or `None` if the route leads nowhere, as an unreachable or a blackhole route.
    pub device: Option<String>,
    /// The word of ip-route(8) for a route that drops packets.
    pub blocks: Option<&'static str>,
}

/// A route of the main table to a part of a family, by a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayRoute {
    pub prefix: IpNet,
    pub device: String,
    /// Whether DHCP or a router advertisement has set it.
    pub is_of_network: bool,
}

impl MainRoute {
    /// Returns the route of several that packets to an address take.
    pub fn best(routes: impl Iterator<Item = Self>, destination: IpAddr) -> Option<Self> {
        let containing = routes.filter(|route| route.prefix.contains(&destination));
        containing.min_by_key(|route| (Reverse(route.prefix.prefix_len()), route.metric))
    }
}

/// Returns the word of ip-route(8) for a kind of routes that drop packets.
fn blocks(kind: RouteType) -> Option<&'static str> {
    match kind {
        RouteType::BlackHole => Some("blackhole"),
        RouteType::Unreachable => Some("unreachable"),
        RouteType::Prohibit => Some("prohibit"),
        _ => None,
    }
}

impl Netlink {
    /// Returns the route that packets with this mark (0: none) to an address take.
    /// The port does not matter, the zone of a link-local address does.
    pub fn route_to(&self, destination: SocketAddr, fw_mark: u32) -> Result<RouteAnswer, RouteError> {
        let answer = self.ask_for_route(destination, fw_mark, RouteFlags::empty()).and_then(|route| {
            let Some(route) = route else { return Err(Failure::Kernel(std::io::ErrorKind::NotFound.into())) };
            let device = device_of(&route).map(|index| self.name_of(index)).transpose()?.flatten();
            let is_local = route.header.kind == RouteType::Local;
            Ok(RouteAnswer { device, is_local, table: table_of(&route) })
        });
        answer.map_err(|failure| failure.because(|| format!("look up the route to {}", host(&destination))))
    }

    /// Returns the routes of the main table.
    pub fn main_routes(&self) -> Result<Vec<MainRoute>, RouteError> {
        let mut names = std::collections::HashMap::new();
        let of_main = |route: RouteMessage| {
            let is_unicast = route.header.kind == RouteType::Unicast;
            let device = devices_of(&route).first().copied().filter(|_| is_unicast);
            let blocks = blocks(route.header.kind);
            (table_of(&route) == MAIN_TABLE).then(|| (net_of(&route), priority_of(&route), device, blocks))
        };
        let found: Vec<_> = self
            .routes_of_both_families(None, of_main)
            .map_err(|failure| failure.because(|| "list the routes".to_owned()))?;
        let with_name = |(prefix, metric, device, blocks): (IpNet, u32, Option<u32>, _)| {
            let device = device.and_then(|index| {
                let name = || self.name_of(index).ok().flatten();
                names.entry(index).or_insert_with(name).clone()
            });
            MainRoute { prefix, metric, device, blocks }
        };
        Ok(found.into_iter().flatten().map(with_name).collect())
    }

    /// Returns the routes of the main table that have a gateway and lead into no tunnel, without default
    /// routes.
    pub fn gateway_routes(&self) -> Result<Vec<GatewayRoute>, RouteError> {
        let by_gateway = |route: RouteMessage| {
            let is_gateway =
                |it: &RouteAttribute| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_));
            let prefix = net_of(&route);
            let is_part = table_of(&route) == MAIN_TABLE && prefix.prefix_len() > 0;
            let is_of_network = matches!(route.header.protocol, RouteProtocol::Dhcp | RouteProtocol::Ra);
            let device = devices_of(&route).first().copied();
            (is_part && route.attributes.iter().any(is_gateway)).then_some((prefix, device?, is_of_network))
        };
        let found: Vec<Option<(IpNet, u32, bool)>> = self
            .routes_of_both_families(None, by_gateway)
            .map_err(|failure| failure.because(|| "list the routes".to_owned()))?;
        // A router of the Internet has a million routes, and few devices.
        let mut names = std::collections::HashMap::new();
        let with_name = |(prefix, device, is_of_network): (IpNet, u32, bool)| {
            let name = || self.name_of(device).ok().flatten().filter(|name| !self.is_tunnel(name));
            let device = names.entry(device).or_insert_with(name).clone()?;
            Some(GatewayRoute { prefix, device, is_of_network })
        };
        Ok(found.into_iter().flatten().filter_map(with_name).collect())
    }

    /// Asks for the path to an address, or with [`RouteFlags::FibMatch`] for the route that it follows, as it
    /// was set. Before Linux 4.13 the answer is the path in any case.
    pub(super) fn ask_for_route(
        &self,
        destination: SocketAddr,
        fw_mark: u32,
        flags: RouteFlags,
    ) -> Result<Option<RouteMessage>, Failure> {
        let mut query = RouteMessage::default();
        query.header.address_family = family(destination.ip());
        query.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
        query.header.flags = flags;
        if destination.is_ipv4() {
            // The answer then has the number of the table. That of IPv6 always has it, and a request for it
            // is refused.
            query.header.flags |= RouteFlags::LookupTable;
        }
        query.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination.ip())));
        if let Some(link) = link_of(destination) {
            query.attributes.push(RouteAttribute::Oif(link));
        }
        if fw_mark != 0 {
            query.attributes.push(RouteAttribute::Mark(fw_mark));
        }
        let answer = self.list(self.handle().route().get(query).execute())?;
        Ok(answer.into_iter().next())
    }

    pub(super) fn name_of(&self, index: u32) -> Result<Option<String>, Failure> {
        let links = self.list(self.handle().link().get().match_index(index).execute())?;
        Ok(links.into_iter().flat_map(|link| link.attributes).find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        }))
    }
}
