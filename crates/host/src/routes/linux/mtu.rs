//! Finds the MTU towards an endpoint from the kernel's routes.

use std::net::SocketAddr;

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType};
use weft_config::endpoint::host;
use weft_config::{Config, tunnel_mtu};

use super::{Failure, Netlink, RouteError, device_of, table_of};
use crate::routes::{MAIN_TABLE, USUAL_MTU};

/// The MTU of a route.
#[derive(Clone, Copy, Debug)]
struct RouteMtu {
    bytes: u32,
    /// Whether packets of this size leave the machine, as far as it can tell. They do not where another
    /// program takes them and sends them on in packets with a route elsewhere: the loopback interface is
    /// 65,536 bytes wide, and the TAP of a rootless container 65,520.
    leaves: bool,
}

impl Netlink {
    /// Returns the MTU of the route to an address: the route's own, else its device's. What the kernel learnt
    /// of a path from ICMP does not count: any host can forge it. `fw_mark` is the mark of the packets that
    /// go there. A program on this machine, such as a relay, sends packets on by routes that are not known:
    /// the route to it counts for no more than the uplinks, or 1500 without any.
    pub fn mtu_towards(&self, destination: SocketAddr, fw_mark: u32) -> Result<u32, RouteError> {
        let mtu = self.ask_for_route(destination, fw_mark, RouteFlags::FibMatch).and_then(|route| {
            route.map_or(Ok(RouteMtu { bytes: USUAL_MTU, leaves: true }), |route| self.mtu_of(&route))
        });
        let looking_up = || format!("look up the route to {}", host(&destination));
        let mtu = mtu.map_err(|failure| failure.because(looking_up))?;
        if mtu.leaves {
            return Ok(mtu.bytes);
        }
        let uplinks = self.mtu_of_default_route(|_, mtu| mtu.leaves);
        Ok(mtu.bytes.min(uplinks.unwrap_or(USUAL_MTU)))
    }

    /// Returns the MTU for the device when none is configured: the smallest MTU of the routes to the
    /// endpoints, else that of the default route, else 1500; less the 80 bytes that the tunnel adds; at least
    /// 1280 with IPv6 in the tunnel. `fw_mark` is the mark of the packets to the endpoints: without the mark
    /// of a full tunnel, the route leads into the tunnel.
    pub fn default_mtu(&self, config: &Config, endpoints: &[SocketAddr], fw_mark: u32) -> u16 {
        let towards = |endpoint: &SocketAddr| match self.mtu_towards(*endpoint, fw_mark) {
            Ok(mtu) => Some(mtu),
            Err(error) => {
                tracing::debug!("{error}");
                None
            }
        };
        let of_default_route = || {
            // With `Table = main` the device has a default route itself once it is up.
            let own = self.link(&config.interface.name).ok().map(|link| link.index);
            self.mtu_of_default_route(|route, _| own.is_none_or(|own| !devices_of(route).contains(&own)))
        };
        let outer = endpoints.iter().filter_map(towards).min().or_else(of_default_route);
        tunnel_mtu(outer.unwrap_or(USUAL_MTU), config.carries_ipv6())
    }

    /// Returns the MTU of the default route that is preferred among those which count; the smaller MTU, if
    /// both families have one.
    fn mtu_of_default_route(&self, counts: impl Fn(&RouteMessage, RouteMtu) -> bool) -> Option<u32> {
        let of = |family| {
            let add = |list: &mut Vec<_>, route| list.extend(Some(route).filter(is_default));
            let mut defaults = self.routes(family, None, add).ok()?;
            defaults.sort_by_key(priority_of);
            let mtus = defaults.iter().filter_map(|route| Some((route, self.mtu_of(route).ok()?)));
            let (_, mtu) = mtus.into_iter().find(|(route, mtu)| counts(route, *mtu))?;
            Some(if mtu.leaves { mtu.bytes } else { mtu.bytes.min(USUAL_MTU) })
        };
        [AddressFamily::Inet, AddressFamily::Inet6].into_iter().filter_map(of).min()
    }

    fn mtu_of(&self, route: &RouteMessage) -> Result<RouteMtu, Failure> {
        if let Some(bytes) = metric_of(route) {
            return Ok(RouteMtu { bytes, leaves: true });
        }
        let (mut smallest, mut leaves) = (None, route.header.kind != RouteType::Local);
        for device in devices_of(route) {
            let links = self.list(self.handle().link().get().match_index(device).execute())?;
            let attributes = || links.iter().flat_map(|link| &link.attributes);
            let is_v6 = route.header.address_family == AddressFamily::Inet6;
            smallest = attributes().filter_map(|attribute| mtu_in(attribute, is_v6)).chain(smallest).min();
            leaves &= !links.iter().any(|link| link.header.flags.contains(LinkFlags::Loopback))
                && !attributes().any(keeps_packets);
        }
        Ok(RouteMtu { bytes: smallest.unwrap_or(USUAL_MTU), leaves })
    }
}

/// Returns an MTU of a device: that of all packets, or one for IPv6 alone, which a router of the link
/// announces (RFC 4861, section 4.6.4) or an administrator sets.
fn mtu_in(attribute: &LinkAttribute, is_v6: bool) -> Option<u32> {
    let families = match attribute {
        LinkAttribute::Mtu(mtu) => return Some(*mtu),
        LinkAttribute::AfSpecUnspec(families) if is_v6 => families,
        _ => return None,
    };
    let of_v6 = families.iter().find_map(|family| match family {
        AfSpecUnspec::Inet6(settings) => Some(settings),
        _ => None,
    })?;
    of_v6.iter().find_map(|setting| match setting {
        AfSpecInet6::DevConf(settings) => u32::try_from(settings.mtu6).ok().filter(|mtu| *mtu > 0),
        _ => None,
    })
}

/// Reports whether a device is of a kind that has no link to other machines: what it gets ends in a program
/// (TUN, TAP), in another device (VRF) or nowhere.
fn keeps_packets(attribute: &LinkAttribute) -> bool {
    let LinkAttribute::LinkInfo(infos) = attribute else { return false };
    infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Tun | InfoKind::Dummy | InfoKind::Vrf)))
}

fn metric_of(route: &RouteMessage) -> Option<u32> {
    let metrics = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    })?;
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
        _ => None,
    })
}

pub(super) fn devices_of(route: &RouteMessage) -> Vec<u32> {
    let hops = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops.iter().map(|hop| hop.interface_index).collect()),
        _ => None,
    });
    hops.unwrap_or_else(|| device_of(route).into_iter().collect())
}

fn is_default(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0
        && table_of(route) == MAIN_TABLE
        && !devices_of(route).is_empty()
}

pub(super) fn priority_of(route: &RouteMessage) -> u32 {
    let priority = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    priority.unwrap_or_default()
}
