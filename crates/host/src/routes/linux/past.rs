//! The way past a device: to what a tunnel must not carry.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use super::Netlink;
use crate::routes::MainRoute;

impl Netlink {
    /// Reports whether packets with a mark (0: none) to an address leave through a device. They do not if
    /// there is no route, or if the address is of another link.
    pub(crate) fn goes_through(&self, device: &str, to: SocketAddr, mark: u32) -> bool {
        let is_of_link = matches!(to, SocketAddr::V6(to) if to.scope_id() != 0);
        let route = if is_of_link { None } else { self.route_to(to.ip(), mark).ok() };
        route.is_some_and(|route| route.device.as_deref() == Some(device))
    }

    /// Returns the device of the route to an address that counts without those through another device.
    pub(crate) fn device_beside(&self, other: &str, destination: IpAddr) -> Option<String> {
        let leads_there = |route: &MainRoute| {
            route.prefix.contains(&destination)
                && route.device.as_deref().is_some_and(|device| device != other)
        };
        let routes = self.main_routes().ok()?.into_iter().filter(leads_there);
        routes.max_by_key(|route| (route.prefix.prefix_len(), Reverse(route.metric)))?.device
    }
}
