//! The way past a device: to what a tunnel must not carry.

use std::cmp::Reverse;
use std::net::SocketAddr;

use super::Netlink;
use crate::routes::{MainRoute, link_of};

impl Netlink {
    /// Reports whether packets with a mark (0: none) to an address leave through a device. They do not if
    /// there is no route.
    pub(crate) fn goes_through(&self, device: &str, to: SocketAddr, mark: u32) -> bool {
        self.route_to(to, mark).is_ok_and(|route| route.device.as_deref() == Some(device))
    }

    /// Returns the device of the route to an address that counts without those through another device. A
    /// link-local address has one device only.
    pub(crate) fn device_beside(&self, other: &str, destination: SocketAddr) -> Option<String> {
        if let Some(link) = link_of(destination) {
            return self.name_of(link).ok().flatten().filter(|device| device != other);
        }
        let leads_there = |route: &MainRoute| {
            route.prefix.contains(&destination.ip())
                && route.device.as_deref().is_some_and(|device| device != other)
        };
        let routes = self.main_routes().ok()?.into_iter().filter(leads_there);
        routes.max_by_key(|route| (route.prefix.prefix_len(), Reverse(route.metric)))?.device
    }
}
