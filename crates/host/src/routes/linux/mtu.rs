//! Finds the MTU towards an endpoint from the kernel's routes.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric};
use weft_config::{Interface, MAX_MTU, MIN_MTU, MIN_MTU_IPV6, OVERHEAD};

use super::{Failure, Netlink, RouteError, device_of, family, table_of};
use crate::routes::MAIN_TABLE;

/// The MTU of an Ethernet link, used when nothing better is known.
pub(super) const USUAL_MTU: u32 = 1500;

impl Netlink {
    /// Returns the MTU of the route to an address: the route's own (as set, or learnt by path MTU discovery),
    /// else its device's. `fw_mark` is the mark of the packets that go there.
    pub fn mtu_towards(&self, destination: IpAddr, fw_mark: u32) -> Result<u32, RouteError> {
        let mut query = RouteMessage::default();
        query.header.address_family = family(destination);
        query.header.destination_prefix_length = if destination.is_ipv4() { 32 } else { 128 };
        query.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination)));
        if fw_mark != 0 {
            query.attributes.push(RouteAttribute::Mark(fw_mark));
        }
        let answer = self.list(self.handle().route().get(query).execute());
        answer
            .and_then(|routes| routes.first().map_or(Ok(USUAL_MTU), |route| self.mtu_of(route)))
            .map_err(|failure| failure.because(|| format!("look up the route to {destination}")))
    }

    /// Returns the MTU for the device when none is configured: the smallest MTU of the routes to the
    /// endpoints, else that of the default route, else 1500; less the 80 bytes that the tunnel adds; at least
    /// 1280 with an IPv6 address. `fw_mark` is the mark of the packets to the endpoints: without the mark of
    /// a full tunnel, the route leads into the tunnel.
    pub fn default_mtu(&self, interface: &Interface, endpoints: &[SocketAddr], fw_mark: u32) -> u16 {
        let towards = |endpoint: &SocketAddr| match self.mtu_towards(endpoint.ip(), fw_mark) {
            Ok(mtu) => Some(mtu),
            Err(error) => {
                tracing::debug!("{error}");
                None
            }
        };
        let outer = endpoints.iter().filter_map(towards).min().or_else(|| self.mtu_of_default_route());
        tunnel_mtu(outer.unwrap_or(USUAL_MTU), interface)
    }

    /// Returns the MTU of the default route; the smaller MTU, if both families have a default route.
    fn mtu_of_default_route(&self) -> Option<u32> {
        [AddressFamily::Inet, AddressFamily::Inet6]
            .into_iter()
            .filter_map(|family| {
                let add = |list: &mut Vec<_>, route| list.extend(Some(route).filter(is_default));
                let defaults = self.routes(family, None, add).ok()?;
                self.mtu_of(defaults.iter().min_by_key(|route| priority_of(route))?).ok()
            })
            .min()
    }

    fn mtu_of(&self, route: &RouteMessage) -> Result<u32, Failure> {
        if let Some(mtu) = metric_of(route) {
            return Ok(mtu);
        }
        let mut smallest = None;
        for device in devices_of(route) {
            let links = self.list(self.handle().link().get().match_index(device).execute())?;
            let mtu = links.iter().flat_map(|link| &link.attributes).find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            });
            smallest = smallest.into_iter().chain(mtu).min();
        }
        Ok(smallest.unwrap_or(USUAL_MTU))
    }
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

fn devices_of(route: &RouteMessage) -> Vec<u32> {
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

fn priority_of(route: &RouteMessage) -> u32 {
    let priority = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    priority.unwrap_or_default()
}

/// Returns the device's MTU if the route to the peers carries packets of `outer_bytes`: 80 bytes less, within
/// what the configured addresses allow.
pub(super) fn tunnel_mtu(outer_bytes: u32, interface: &Interface) -> u16 {
    let ipv6 = interface.addresses.iter().any(|address| matches!(address, IpNet::V6(_)));
    let least = if ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    let inner = outer_bytes.saturating_sub(OVERHEAD.into());
    u16::try_from(inner).unwrap_or(MAX_MTU).clamp(least, MAX_MTU)
}
