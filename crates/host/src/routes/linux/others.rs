//! What other programs have made: the route in the way of one of weft, and the kind of a device.

use std::collections::{BTreeSet, HashMap, HashSet};

use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use weft_config::InterfaceName;

use super::mtu::priority_of;
use super::{Netlink, RouteError, device_of, family, net_of, route_name, table_of};

/// The metric of a route of IPv6 that is added without one (linux/ipv6_route.h: IP6_RT_PRIO_USER).
const METRIC_V6: u32 = 1024;

impl Netlink {
    /// Returns the errors that adding these routes, each a prefix and a table, through a device gives because
    /// other devices have such routes.
    pub(crate) fn in_the_way(
        &self,
        device: &InterfaceName,
        wanted: &HashSet<(IpNet, u32)>,
    ) -> Result<Vec<RouteError>, RouteError> {
        let own = self.link(device).ok().map(|link| link.index);
        self.those_in_the_way(device.as_str(), own, wanted)
    }

    /// Does the same. Routes through the device `own` do not count.
    pub(super) fn those_in_the_way(
        &self,
        device: &str,
        own: Option<u32>,
        wanted: &HashSet<(IpNet, u32)>,
    ) -> Result<Vec<RouteError>, RouteError> {
        let mut found = Vec::new();
        for of in [AddressFamily::Inet, AddressFamily::Inet6] {
            if !wanted.iter().any(|(prefix, _)| family(prefix.addr()) == of) {
                continue;
            }
            // The kernel takes routes to one prefix that differ in their metric or type of service.
            let metric = if of == AddressFamily::Inet { 0 } else { METRIC_V6 };
            let add = |found: &mut Vec<RouteMessage>, route: RouteMessage| {
                let is_wanted = wanted.contains(&(net_of(&route), table_of(&route)));
                let is_like = priority_of(&route) == metric && route.header.tos == 0;
                if is_wanted && is_like && (own.is_none() || device_of(&route) != own) {
                    found.push(route);
                }
            };
            let routes = self.routes(of, None, add);
            found.extend(routes.map_err(|failure| failure.because(|| "list the routes".to_owned()))?);
        }
        found.sort_by_key(|route| (table_of(route), net_of(route)));
        found.dedup_by_key(|route| (table_of(route), net_of(route)));
        let error = |route: RouteMessage| {
            let (prefix, table) = (net_of(&route), table_of(&route));
            let action = route_name("add", device, prefix, table);
            RouteError::RouteExists { action, prefix, way: self.way_of(&route) }
        };
        Ok(found.into_iter().map(error).collect())
    }

    /// Returns where a route leads, in words.
    fn way_of(&self, route: &RouteMessage) -> String {
        match route.header.kind {
            // In IPv6 these have the loopback as their device.
            RouteType::BlackHole => "to nowhere (blackhole)".to_owned(),
            RouteType::Unreachable | RouteType::Prohibit => "to an error (unreachable)".to_owned(),
            _ => match device_of(route).or_else(|| first_hop_of(route)) {
                Some(index) => {
                    let name = self.name_of(index).ok().flatten();
                    format!("through {}", name.unwrap_or_else(|| format!("device {index}")))
                }
                None => "elsewhere".to_owned(),
            },
        }
    }

    /// Reports whether a device is one of the kernel's WireGuard.
    pub fn is_of_kernel_wireguard(&self, name: &InterfaceName) -> bool {
        self.is_of_kind(name.as_str(), &[InfoKind::Wireguard])
    }

    /// Reports whether what a device gets leaves the machine in the packets of a VPN.
    pub(crate) fn is_tunnel(&self, name: &str) -> bool {
        self.is_of_kind(name, &[InfoKind::Tun, InfoKind::Wireguard, InfoKind::Other("amneziawg".to_owned())])
    }

    /// Returns the tables with a route into a tunnel.
    pub(crate) fn tables_into_tunnels(&self) -> Result<BTreeSet<u32>, RouteError> {
        let into = |route: RouteMessage| {
            Some((device_of(&route).or_else(|| first_hop_of(&route))?, table_of(&route)))
        };
        let found: HashSet<Option<(u32, u32)>> = self
            .routes_of_both_families(None, into)
            .map_err(|failure| failure.because(|| "list the routes".to_owned()))?;
        let mut tunnels = HashMap::new();
        let mut is_tunnel = |device: u32| {
            let ask = || self.name_of(device).ok().flatten().is_some_and(|name| self.is_tunnel(&name));
            *tunnels.entry(device).or_insert_with(ask)
        };
        Ok(found
            .into_iter()
            .flatten()
            .filter(|(device, _)| is_tunnel(*device))
            .map(|(_, table)| table)
            .collect())
    }

    fn is_of_kind(&self, name: &str, kinds: &[InfoKind]) -> bool {
        let links = self.list(self.handle().link().get().match_name(name.to_owned()).execute());
        let infos = links.into_iter().flatten().flat_map(|link| link.attributes).filter_map(|attribute| {
            match attribute {
                LinkAttribute::LinkInfo(infos) => Some(infos),
                _ => None,
            }
        });
        infos.flatten().any(|info| matches!(info, LinkInfo::Kind(kind) if kinds.contains(&kind)))
    }
}

/// Returns the device of the first of several next hops.
fn first_hop_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops.first()?.interface_index),
        _ => None,
    })
}
