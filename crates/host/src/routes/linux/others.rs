//! What other programs have made: the route in the way of one of weft, and the kind of a device.

use ipnet::IpNet;
use rtnetlink::packet_route::link::{InfoKind, LinkAttribute, LinkInfo};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use weft_config::InterfaceName;

use super::{Netlink, device_of, family, net_of, table_of};

impl Netlink {
    /// Returns where a prefix is routed already, in words.
    pub(super) fn way_of(&self, prefix: IpNet, table: u32) -> Option<String> {
        let find = |found: &mut Option<RouteMessage>, route: RouteMessage| {
            if found.is_none() && table_of(&route) == table && net_of(&route) == prefix {
                *found = Some(route);
            }
        };
        let route = self.routes(family(prefix.addr()), None, find).ok()??;
        Some(match route.header.kind {
            // In IPv6 these have the loopback as their device.
            RouteType::BlackHole => "to nowhere (blackhole)".to_owned(),
            RouteType::Unreachable | RouteType::Prohibit => "to an error (unreachable)".to_owned(),
            _ => match device_of(&route).or_else(|| first_hop_of(&route)) {
                Some(index) => {
                    let name = self.name_of(index).ok().flatten();
                    format!("through {}", name.unwrap_or_else(|| format!("device {index}")))
                }
                None => "elsewhere".to_owned(),
            },
        })
    }

    /// Reports whether a device is one of the kernel's WireGuard.
    pub fn is_of_kernel_wireguard(&self, name: &InterfaceName) -> bool {
        let links = self.list(self.handle().link().get().match_name(name.to_string()).execute());
        let infos = links.into_iter().flatten().flat_map(|link| link.attributes).filter_map(|attribute| {
            match attribute {
                LinkAttribute::LinkInfo(infos) => Some(infos),
                _ => None,
            }
        });
        infos.flatten().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Wireguard)))
    }
}

/// Returns the device of the first of several next hops.
fn first_hop_of(route: &RouteMessage) -> Option<u32> {
    route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops.first()?.interface_index),
        _ => None,
    })
}
