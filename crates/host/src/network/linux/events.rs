//! Interprets netlink events: many of them are noise.

use std::collections::HashMap;

use rtnetlink::packet_core::{NLM_F_REPLACE, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::network::NetworkChange;
use crate::routes::{Link, MAIN_TABLE};

/// The maximum number of interfaces with a remembered state. Every event of a further interface counts as a
/// change.
const MAX_LINKS: usize = 4096;
/// The kernel's table with the routes of local addresses, which change with the addresses (rt_tables:
/// RT_TABLE_LOCAL).
const LOCAL_TABLE: u8 = 255;

/// Whether packets can go through an interface, its MTU, and whether it has the name of weft's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    is_running: bool,
    mtu: Option<u32>,
    has_own_name: bool,
}

/// Reads the events of the kernel, and remembers the state of interfaces, to distinguish a change from a
/// repetition: every scan of a Wi-Fi interface causes an event.
#[derive(Debug)]
pub struct Observer {
    own: Option<u32>,
    own_name: String,
    own_mtu: Option<u32>,
    is_own_down: bool,
    links: HashMap<u32, State>,
}

impl Observer {
    /// Returns an observer that has seen nothing yet. Changes of weft's own device are told apart.
    pub fn new(own: Option<&Link>) -> Self {
        let (index, mtu) = own.map(|link| (link.index, link.mtu)).unzip();
        let own_name = own.map(|link| link.name.clone()).unwrap_or_default();
        Self { own: index, own_name, own_mtu: mtu, is_own_down: false, links: HashMap::new() }
    }

    /// Returns what the messages of one datagram of the kernel change.
    pub fn read(&mut self, datagram: &[u8]) -> NetworkChange {
        let mut change = NetworkChange::default();
        let mut rest = datagram;
        while let Some(len) = rest.first_chunk::<4>().map(|len| u32::from_ne_bytes(*len) as usize) {
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                Ok(message) => {
                    let replaces = message.header.flags & NLM_F_REPLACE != 0;
                    if let NetlinkPayload::InnerMessage(message) = message.payload {
                        change.add(self.see(&message));
                        if replaces && let RouteNetlinkMessage::NewRoute(route) = &message {
                            change.add(replaced_by(route));
                        }
                    }
                }
                // The kernel may be newer than the library.
                Err(error) => {
                    tracing::debug!(%error, "unknown message from netlink");
                    change.missed = true;
                }
            }
            let Some(next) = len.checked_next_multiple_of(4).filter(|len| *len > 0) else { break };
            rest = rest.get(next..).unwrap_or_default();
        }
        change
    }

    /// Returns what a message changes.
    fn see(&mut self, message: &RouteNetlinkMessage) -> NetworkChange {
        let nothing = NetworkChange::default();
        match message {
            RouteNetlinkMessage::NewAddress(address) => {
                let is_own = self.is_own(address.header.index);
                NetworkChange { addresses: !is_own, device_changed: is_own, ..nothing }
            }
            // With the last IPv4 address the kernel removes the routes of the device, and says nothing of
            // them.
            RouteNetlinkMessage::DelAddress(address) => {
                let is_own = self.is_own(address.header.index);
                NetworkChange { addresses: !is_own, device_undone: is_own, ..nothing }
            }
            RouteNetlinkMessage::NewRoute(route) => {
                let routes = self.is_of_interest(route);
                NetworkChange { routes, device_changed: !routes && is_configured(route), ..nothing }
            }
            RouteNetlinkMessage::DelRoute(route) => {
                let routes = self.is_of_interest(route);
                NetworkChange {
                    routes,
                    rules_removed: !routes && is_default_by_rule(route),
                    device_changed: !routes && is_configured(route),
                    ..nothing
                }
            }
            RouteNetlinkMessage::NewRule(_) => NetworkChange { routes: true, ..nothing },
            RouteNetlinkMessage::DelRule(rule) => {
                NetworkChange { routes: true, rules_removed: is_of_a_full_tunnel(rule), ..nothing }
            }
            RouteNetlinkMessage::NewLink(link) => self.link_is(link),
            RouteNetlinkMessage::DelLink(link) => self.link_goes(link),
            _ => nothing,
        }
    }

    fn is_own(&self, index: u32) -> bool {
        self.own == Some(index)
    }

    fn is_of_interest(&self, route: &RouteMessage) -> bool {
        let header: &RouteHeader = &route.header;
        if header.table == LOCAL_TABLE
            || header.flags.contains(RouteFlags::Cloned)
            || matches!(header.kind, RouteType::Multicast | RouteType::Broadcast | RouteType::Anycast)
        {
            return false;
        }
        let mut devices = route.attributes.iter().flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
            _ => Vec::new(),
        });
        // A route without a device makes its prefix unreachable.
        devices.next().is_none_or(|first| !self.is_own(first) || devices.any(|other| !self.is_own(other)))
    }

    fn link_is(&mut self, link: &LinkMessage) -> NetworkChange {
        let index = link.header.index;
        // Bridges report their ports in a separate address family, and IPv6 what it is told to do.
        if link.header.interface_family != AddressFamily::Unspec {
            return NetworkChange { device_changed: self.is_own(index), ..NetworkChange::default() };
        }
        let mtu = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        let is_named = |attribute: &LinkAttribute| match attribute {
            LinkAttribute::IfName(name) => Some(*name == self.own_name),
            _ => None,
        };
        let has_own_name = link.attributes.iter().find_map(is_named);
        if self.is_own(index) {
            let is_new = mtu.is_some() && mtu != self.own_mtu;
            self.own_mtu = mtu.or(self.own_mtu);
            let was_down =
                std::mem::replace(&mut self.is_own_down, !link.header.flags.contains(LinkFlags::Up));
            return NetworkChange {
                device_mtu: mtu.filter(|_| is_new),
                device_up: was_down && !self.is_own_down,
                device_undone: has_own_name == Some(false) || (self.is_own_down && !was_down),
                ..NetworkChange::default()
            };
        }
        let is_running = link.header.flags.contains(LinkFlags::Up | LinkFlags::Running);
        let state = State { is_running, mtu, has_own_name: has_own_name == Some(true) };
        if self.links.len() >= MAX_LINKS && !self.links.contains_key(&index) {
            return NetworkChange { links: true, ..NetworkChange::default() };
        }
        NetworkChange { links: self.links.insert(index, state) != Some(state), ..NetworkChange::default() }
    }

    fn link_goes(&mut self, link: &LinkMessage) -> NetworkChange {
        if link.header.interface_family != AddressFamily::Unspec {
            return NetworkChange::default();
        }
        if !self.is_own(link.header.index) {
            self.links.remove(&link.header.index);
            return NetworkChange { links: true, ..NetworkChange::default() };
        }
        // In the namespace that it leaves, a device that moves looks like a deleted device, except for the
        // attribute with the new namespace.
        let has_moved =
            link.attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::NewNetnsId(_)));
        // Another device may have its index from now on.
        self.own = None;
        NetworkChange { device_gone: !has_moved, device_left: has_moved, ..NetworkChange::default() }
    }
}

/// Reports whether a route is one that packets take because of a rule: a default route in a separate table.
fn is_default_by_rule(route: &RouteMessage) -> bool {
    route.header.destination_prefix_length == 0 && u32::from(route.header.table) != MAIN_TABLE
}

/// Returns what a route changes that takes the place of another one: that may be one of weft's device, and
/// the kernel does not tell of its end.
fn replaced_by(route: &RouteMessage) -> NetworkChange {
    NetworkChange {
        rules_removed: is_default_by_rule(route),
        device_changed: is_configured(route),
        ..NetworkChange::default()
    }
}

/// Reports whether a route is one that a person, weft or the kernel made. Those of a routing daemon may be a
/// million.
fn is_configured(route: &RouteMessage) -> bool {
    matches!(route.header.protocol, RouteProtocol::Static | RouteProtocol::Boot | RouteProtocol::Kernel)
        && !route.header.flags.contains(RouteFlags::Cloned)
}

/// Reports whether a rule is like one that a full tunnel needs, see [`crate::routes::RuleKind`].
fn is_of_a_full_tunnel(rule: &RuleMessage) -> bool {
    let is_inverted = rule.header.flags.contains(RuleFlags::Invert);
    rule.attributes.iter().any(|attribute| match attribute {
        RuleAttribute::FwMark(_) => is_inverted,
        RuleAttribute::SuppressPrefixLen(length) => *length == 0,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_route::address::AddressMessage;
    use rtnetlink::packet_route::route::RouteNextHop;

    use super::*;

    const OWN: u32 = 7;
    const OTHER: u32 = 2;

    fn observer() -> Observer {
        Observer::new(Some(&Link { name: "weft0".into(), index: OWN, mtu: 1420 }))
    }

    fn route(attributes: Vec<RouteAttribute>) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.table = 254;
        route.attributes = attributes;
        route
    }

    fn hop(device: u32) -> RouteNextHop {
        let mut hop = RouteNextHop::default();
        hop.interface_index = device;
        hop
    }

    fn link(index: u32, flags: LinkFlags, mtu: u32) -> LinkMessage {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (index, flags);
        link.attributes.push(LinkAttribute::Mtu(mtu));
        link
    }

    #[test]
    fn addresses_of_other_devices_count() {
        for (index, counts) in [(OTHER, true), (OWN, false)] {
            let mut address = AddressMessage::default();
            address.header.index = index;
            let change = observer().see(&RouteNetlinkMessage::DelAddress(address.clone()));
            let expected = NetworkChange { addresses: counts, ..NetworkChange::default() };
            assert_eq!(change, NetworkChange { device_undone: !counts, ..expected });
            let change = observer().see(&RouteNetlinkMessage::NewAddress(address));
            assert_eq!(change, NetworkChange { device_changed: !counts, ..expected });
        }
    }

    #[test]
    fn routes_beside_the_own_device_count() {
        for (attributes, counts) in [
            (vec![RouteAttribute::Oif(OTHER)], true),
            (vec![RouteAttribute::Oif(OWN)], false),
            (vec![RouteAttribute::MultiPath(vec![hop(OWN), hop(OTHER)])], true),
            (vec![RouteAttribute::MultiPath(vec![hop(OWN)])], false),
            (vec![], true),
        ] {
            let change = observer().see(&RouteNetlinkMessage::NewRoute(route(attributes.clone())));
            assert_eq!(
                change,
                NetworkChange { routes: counts, ..NetworkChange::default() },
                "{attributes:?}"
            );
        }
        let mut local = route(vec![RouteAttribute::Oif(OTHER)]);
        local.header.table = LOCAL_TABLE;
        assert!(observer().see(&RouteNetlinkMessage::NewRoute(local)).is_empty());
        let rule = RouteNetlinkMessage::NewRule(RuleMessage::default());
        assert!(observer().see(&rule).routes);
    }

    #[test]
    fn what_a_full_tunnel_needs_is_told_of_when_it_is_removed() {
        let removed = |route| observer().see(&RouteNetlinkMessage::DelRoute(route)).rules_removed;
        let default_route = |device, table| {
            let mut route = route(vec![RouteAttribute::Oif(device)]);
            route.header.table = table;
            route
        };
        // The numbers of tables above 255 are in an attribute, and the header has RT_TABLE_COMPAT.
        assert!(removed(default_route(OWN, 252)));
        assert!(!removed(default_route(OWN, 254)), "routes of the main table may be changed by hand");
        assert!(!removed(default_route(OTHER, 252)));
        let mut prefix = default_route(OWN, 252);
        prefix.header.destination_prefix_length = 8;
        assert!(!removed(prefix));
        let added = observer().see(&RouteNetlinkMessage::NewRoute(default_route(OWN, 252)));
        assert!(added.is_empty());

        let inverted = |attribute| {
            let mut rule = RuleMessage::default();
            rule.header.flags = RuleFlags::Invert;
            rule.attributes.push(attribute);
            rule
        };
        let mut marked = inverted(RuleAttribute::FwMark(51_820));
        let removed = |rule: &RuleMessage| observer().see(&RouteNetlinkMessage::DelRule(rule.clone()));
        assert!(removed(&marked).rules_removed && removed(&marked).routes);
        assert!(!observer().see(&RouteNetlinkMessage::NewRule(marked.clone())).rules_removed);
        marked.header.flags = RuleFlags::empty();
        assert!(!removed(&marked).rules_removed && removed(&marked).routes);
        assert!(removed(&inverted(RuleAttribute::SuppressPrefixLen(0))).rules_removed);
        assert!(!removed(&inverted(RuleAttribute::SuppressPrefixLen(8))).rules_removed);
        assert!(!removed(&inverted(RuleAttribute::Table(7))).rules_removed);
    }

    #[test]
    fn a_link_counts_when_it_is_not_as_it_was() {
        let (up, running) = (LinkFlags::Up, LinkFlags::Up | LinkFlags::Running);
        let mut observer = observer();
        let mut see = |flags, mtu| observer.see(&RouteNetlinkMessage::NewLink(link(OTHER, flags, mtu))).links;
        assert!(see(running, 1500));
        assert!(!see(running, 1500), "a scan, say");
        assert!(!see(running | LinkFlags::Promisc, 1500));
        assert!(see(up, 1500), "the cable was pulled");
        assert!(see(running, 1500));
        assert!(see(running, 1400));
        let mut port = link(OTHER, up, 9000);
        port.header.interface_family = AddressFamily::Bridge;
        assert!(observer.see(&RouteNetlinkMessage::NewLink(port)).is_empty());
    }

    #[test]
    fn the_own_device_is_told_of_when_its_mtu_changes_and_when_it_goes() {
        let mut observer = observer();
        let own = |mtu| RouteNetlinkMessage::NewLink(link(OWN, LinkFlags::Up, mtu));
        assert!(observer.see(&own(1420)).is_empty());
        assert_eq!(
            observer.see(&own(1380)),
            NetworkChange { device_mtu: Some(1380), ..NetworkChange::default() }
        );
        let gone = RouteNetlinkMessage::DelLink(link(OWN, LinkFlags::empty(), 1380));
        assert_eq!(observer.see(&gone), NetworkChange { device_gone: true, ..NetworkChange::default() });
        assert!(!observer.see(&gone).device_gone, "what has its number now is another device");
    }

    #[test]
    fn what_is_done_to_the_own_device_is_told_but_not_what_a_routing_daemon_does() {
        let mut observer = observer();
        let mut own = |name: &str, flags| {
            let mut link = link(OWN, flags, 1420);
            link.attributes.push(LinkAttribute::IfName(name.to_owned()));
            observer.see(&RouteNetlinkMessage::NewLink(link))
        };
        let undone = NetworkChange { device_undone: true, ..NetworkChange::default() };
        assert_eq!(own("weft0", LinkFlags::Up), NetworkChange::default());
        assert_eq!(own("vpn0", LinkFlags::Up), undone);
        assert_eq!(own("weft0", LinkFlags::empty()), undone);
        assert_eq!(own("weft0", LinkFlags::empty()), NetworkChange::default());
        for (protocol, counts) in
            [(RouteProtocol::Static, true), (RouteProtocol::Boot, true), (RouteProtocol::Bird, false)]
        {
            let mut route = route(vec![RouteAttribute::Oif(OWN)]);
            route.header.protocol = protocol;
            let expected = NetworkChange { device_changed: counts, ..NetworkChange::default() };
            assert_eq!(observer.see(&RouteNetlinkMessage::NewRoute(route.clone())), expected);
            assert_eq!(observer.see(&RouteNetlinkMessage::DelRoute(route)), expected);
        }
    }

    #[test]
    fn the_own_device_is_told_of_when_it_comes_up_again() {
        let mut observer = observer();
        let mut is_up_again =
            |flags| observer.see(&RouteNetlinkMessage::NewLink(link(OWN, flags, 1420))).device_up;
        let (up, down) = (LinkFlags::Up, LinkFlags::empty());
        assert_eq!([up, down, down, up, up].map(&mut is_up_again), [false, false, false, true, false]);
    }

    #[test]
    fn a_device_that_moves_to_another_namespace_is_not_gone() {
        let mut moved = link(OWN, LinkFlags::empty(), 1420);
        moved.attributes.push(LinkAttribute::NewNetnsId(3));
        let change = observer().see(&RouteNetlinkMessage::DelLink(moved));
        assert_eq!(change, NetworkChange { device_left: true, ..NetworkChange::default() });
    }

    #[test]
    fn the_port_of_a_bridge_that_leaves_it_is_not_gone() {
        let mut port = link(OWN, LinkFlags::empty(), 1420);
        port.header.interface_family = AddressFamily::Bridge;
        assert!(observer().see(&RouteNetlinkMessage::DelLink(port)).is_empty());
    }
}
