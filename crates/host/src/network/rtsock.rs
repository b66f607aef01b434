//! What a message of a routing socket means to the tunnel.

use super::NetworkChange;
use crate::routes::bsd::message::Message;

/// Returns the change that a message tells of; `device` is the index of weft's device, and changes of its
/// addresses and routes are ignored.
pub(super) fn change(message: &Message, device: Option<u32>) -> NetworkChange {
    let nothing = NetworkChange::default();
    match message {
        Message::Route(route) | Message::Removed(route) if Some(route.index) == device => nothing,
        Message::Route(_) | Message::Removed(_) => NetworkChange { routes: true, ..nothing },
        Message::Address(index) if Some(*index) == device => nothing,
        Message::Address(_) => NetworkChange { addresses: true, ..nothing },
        Message::Link { index, mtu } if Some(*index) == device => {
            NetworkChange { device_mtu: Some(*mtu), ..nothing }
        }
        Message::Gone(index) if Some(*index) == device => NetworkChange { device_gone: true, ..nothing },
        Message::Link { .. } | Message::Gone(_) => NetworkChange { links: true, ..nothing },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::bsd::message::Route;

    #[test]
    fn other_interfaces_matter_and_the_own_one_only_by_its_mtu_and_its_end() {
        let none = NetworkChange::default();
        let route =
            |index| Route { prefix: "0.0.0.0/0".parse().unwrap(), gateway: None, index, is_blackhole: false };
        let cases = [
            (Message::Route(route(4)), NetworkChange { routes: true, ..none }),
            (Message::Removed(route(4)), NetworkChange { routes: true, ..none }),
            (Message::Address(4), NetworkChange { addresses: true, ..none }),
            (Message::Link { index: 4, mtu: 1500 }, NetworkChange { links: true, ..none }),
            (Message::Gone(4), NetworkChange { links: true, ..none }),
            (Message::Route(route(9)), none),
            (Message::Removed(route(9)), none),
            (Message::Address(9), none),
            (Message::Link { index: 9, mtu: 1380 }, NetworkChange { device_mtu: Some(1380), ..none }),
            (Message::Gone(9), NetworkChange { device_gone: true, ..none }),
        ];
        for (message, expected) in cases {
            assert_eq!(change(&message, Some(9)), expected, "{message:?}");
        }
        assert!(change(&Message::Route(route(4)), Some(9)).concerns_ways());
    }
}
