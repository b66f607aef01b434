use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use weft_lab::link::{self, LinkOptions};
use weft_lab::{Namespace, here};

use super::*;
use crate::network::{Watch, Way};

const PATIENCE: Duration = Duration::from_secs(20);

/// Two namespaces joined by a veth.
fn joined() -> Option<(Namespace, Namespace)> {
    if !here::namespaces_permitted() {
        return None;
    }
    let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
    let options = LinkOptions {
        addresses_a: vec!["192.0.2.1/24".parse().unwrap(), "2001:db8::1/64".parse().unwrap()],
        addresses_b: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
        ..LinkOptions::default()
    };
    link::join(&a, &b, &options).unwrap();
    Some((a, b))
}

fn watch(namespace: &Namespace, device: Option<&Link>) -> (Watch, Receiver<NetworkChange>) {
    let (sender, changes) = channel();
    let watch = namespace.run(|| {
        Watch::start(device, move |change| {
            let _ = sender.send(change);
        })
    });
    (watch.unwrap(), changes)
}

/// Waits for a change of that kind; others may come before it.
#[track_caller]
fn until(changes: &Receiver<NetworkChange>, is_so: impl Fn(&NetworkChange) -> bool) -> NetworkChange {
    let start = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(start.elapsed());
        let change = changes.recv_timeout(left).unwrap();
        if is_so(&change) {
            return change;
        }
    }
}

fn link_named(namespace: &Namespace, name: &str) -> Link {
    namespace.run(|| crate::routes::Netlink::open().unwrap().link(&name.parse().unwrap()).unwrap())
}

#[test]
fn addresses_routes_and_links_are_told() {
    let Some((a, b)) = joined() else { return };
    let (_watch, changes) = watch(&a, None);
    link::add_address(&a, "eth0", "192.0.2.9/24".parse().unwrap()).unwrap();
    until(&changes, |change| change.addresses);
    link::add_route(&a, "198.51.100.0/24".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
    until(&changes, |change| change.routes);
    link::set_mtu(&a, "eth0", 1400).unwrap();
    until(&changes, |change| change.links);
    link::set_down(&b, "eth0").unwrap();
    until(&changes, |change| change.links);
}

#[test]
fn a_burst_is_told_once() {
    let Some((a, _b)) = joined() else { return };
    let (watch, changes) = watch(&a, None);
    for host in 10..60 {
        link::add_address(&a, "eth0", format!("198.51.100.{host}/32").parse().unwrap()).unwrap();
    }
    until(&changes, |change| change.addresses);
    drop(watch);
    // The burst is merged: one more change follows, or two on a busy machine.
    assert!(changes.try_iter().count() < 25);
}

#[test]
fn the_own_device_is_told_of_when_it_goes() {
    let Some((a, _b)) = joined() else { return };
    let own = link_named(&a, "eth0");
    let (_watch, changes) = watch(&a, Some(&own));
    link::set_mtu(&a, "eth0", 1400).unwrap();
    assert_eq!(until(&changes, |change| change.device_mtu.is_some()).device_mtu, Some(1400));
    // Addresses of weft's device are not reported.
    link::add_address(&a, "eth0", "192.0.2.9/24".parse().unwrap()).unwrap();
    link::remove(&a, "eth0").unwrap();
    let change = until(&changes, |change| change.device_gone);
    assert!(!change.addresses && !change.links, "{change:?}");
}

#[test]
fn a_watch_ends_when_it_is_dropped() {
    let Some((a, _b)) = joined() else { return };
    let (watch, changes) = watch(&a, None);
    drop(watch);
    assert!(changes.recv().is_err(), "the callback is gone with the thread");
}

#[test]
fn a_way_is_what_the_routes_say() {
    let Some((a, _b)) = joined() else { return };
    let to = |address: &str| SocketAddr::new(address.parse().unwrap(), 51820);
    let way = |address: &str| a.run(|| way_to(to(address), 0)).ok();
    let from = |source: &str, mtu| Some(Way { source: source.parse().unwrap(), mtu: Some(mtu) });
    assert_eq!(way("192.0.2.2"), from("192.0.2.1", 1500));
    assert_eq!(way("2001:db8::2"), from("2001:db8::1", 1500));
    assert_eq!(way("198.51.100.1"), None);
    link::add_route(&a, "198.51.100.0/24".parse().unwrap(), "192.0.2.2".parse().unwrap()).unwrap();
    link::set_mtu(&a, "eth0", 1400).unwrap();
    assert_eq!(way("198.51.100.1"), from("192.0.2.1", 1400));
}

#[test]
fn a_router_of_the_link_may_set_the_mtu_of_ipv6_alone() {
    let Some((a, _b)) = joined() else { return };
    a.set_sysctl("net/ipv6/conf/eth0/mtu", "1400").unwrap();
    let netlink = a.run(|| crate::routes::Netlink::open().unwrap());
    for (address, mtu) in [("192.0.2.2:1", 1500), ("[2001:db8::2]:1", 1400)] {
        assert_eq!(netlink.mtu_towards(address.parse().unwrap(), 0).unwrap(), mtu, "{address}");
    }
}

#[test]
fn the_zone_of_a_link_local_address_chooses_its_way() {
    let Some((a, b)) = joined() else { return };
    let second =
        LinkOptions { name_a: "eth1".into(), name_b: "eth1".into(), mtu: 1400, ..LinkOptions::default() };
    link::join(&a, &b, &second).unwrap();
    let config = weft_config::parse(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n",
        "wg0.conf".as_ref(),
        "wg0".parse().unwrap(),
    );
    let config = config.unwrap().config;
    a.run(|| {
        let netlink = crate::routes::Netlink::open().unwrap();
        for (name, other, mtu) in [("eth0", "eth1", 1500), ("eth1", "eth0", 1400)] {
            let endpoint = weft_config::endpoint::parse(&format!("[fe80::9%{name}]:1")).unwrap();
            assert_eq!(netlink.route_to(endpoint, 0).unwrap().device.as_deref(), Some(name));
            assert_eq!(netlink.mtu_towards(endpoint, 0).unwrap(), mtu, "{name}");
            assert_eq!(u32::from(netlink.default_mtu(&config, &[endpoint], 0)), mtu - 80, "{name}");
            for device in [name, other] {
                let is_its = device == name;
                assert_eq!(netlink.goes_through(device, endpoint, 0), is_its, "{device} to {name}");
                // A name server of the tunnel is not reached beside it.
                let beside = netlink.device_beside(device, endpoint);
                assert_eq!(beside.as_deref(), Some(name).filter(|_| !is_its), "{name} beside {device}");
            }
        }
    });
}
