//! Waits until the IPv6 addresses of a device can be used.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};

use super::{Link, Netlink, address_of, family};

/// How long to wait at most, and between two looks.
const PATIENCE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(1);

impl Netlink {
    /// Waits until packets to the IPv6 addresses of a device reach this machine. The kernel makes the route
    /// to an address in a work queue, up to 30 ms later on a busy machine, also without duplicate address
    /// detection (addrconf_dad_work), and until then drops the answer to the first packet of a tunnel.
    pub fn settle_addresses(&self, link: &Link) {
        let Ok(found) = self.address_messages(link) else { return };
        let is_settled_at_once = |flags: AddressHeaderFlags| flags.contains(AddressHeaderFlags::Nodad);
        let addresses = found.iter().filter(|found| is_settled_at_once(found.header.flags));
        let addresses = addresses.filter_map(|found| Some(address_of(found)?.addr()));
        let start = Instant::now();
        for address in addresses.filter(IpAddr::is_ipv6) {
            while !self.is_local(address) {
                if start.elapsed() > PATIENCE {
                    tracing::debug!(%address, "the kernel has no route to the address yet");
                    return;
                }
                std::thread::sleep(TICK);
            }
        }
    }

    /// Reports whether packets to an address are for this machine. An error counts as a yes: there is nothing
    /// to wait for.
    fn is_local(&self, address: IpAddr) -> bool {
        let mut query = RouteMessage::default();
        query.header.address_family = family(address);
        query.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        query.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
        let routes = self.list(self.handle().route().get(query).execute());
        routes.map_or(true, |routes| routes.iter().any(|route| route.header.kind == RouteType::Local))
    }
}
