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

#[cfg(test)]
mod tests {
    use weft_lab::{Namespace, here};

    use super::*;
    use crate::Step;
    use crate::execute::System as _;
    use crate::kernel::Kernel;

    #[test]
    fn an_address_whose_packets_do_not_arrive_here_yet_is_waited_for() {
        if !here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("settle").unwrap();
        let ip = |words: &str| {
            let done = namespace.command("ip").args(words.split(' ')).status().unwrap();
            assert!(done.success(), "{words}");
        };
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth1 up");
        ip("link set veth0 up");
        ip("address add fd99::1/64 dev veth0 nodad");
        namespace.run(|| {
            let netlink = Netlink::open().unwrap();
            let link = netlink.find_link("veth0").unwrap();
            let address = "fd99::1".parse().unwrap();
            netlink.settle_addresses(&link);
            assert!(netlink.is_local(address));
            // As it is for a moment: the address has no route.
            ip("-6 route del local fd99::1 table local");
            assert!(!netlink.is_local(address));
            let mut kernel = Kernel::new(netlink, "veth0".parse().unwrap());
            kernel.link = Some(link);
            let start = Instant::now();
            kernel.apply(&Step::LinkUp).unwrap();
            assert!(start.elapsed() >= PATIENCE);
        });
    }
}
