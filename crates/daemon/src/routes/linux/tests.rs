//! Against the kernel, in a network namespace of its own:
//!
//! ```text
//!   ┌─ fresh namespace ─────────────┐
//!   │  dummy0        veth0 ── veth1 │
//!   └───────────────────────────────┘
//! ```

use std::net::IpAddr;

use nix::sched::{CloneFlags, unshare};
use rtnetlink::{LinkDummy, LinkVeth};

use super::*;
use crate::config::{Config, parse};
use crate::routes::Applied;

/// Runs a test on a thread in a fresh network namespace. Without CAP_SYS_ADMIN it is not run: a user namespace is
/// only for processes with one thread.
fn in_a_namespace(test: &str, body: impl FnOnce(&Netlink) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let netlink = Netlink::open().unwrap();
        body(&netlink);
        Ok::<_, nix::Error>(())
    });
    if let Err(reason) = thread.join().unwrap() {
        eprintln!("NOT RUN: {test}: no network namespace: {reason}");
    }
}

/// A dummy device, unless the kernel has none: then one end of a veth pair.
fn make_link(netlink: &Netlink) -> Link {
    let made = netlink.wait(netlink.handle.link().add(LinkDummy::new("dummy0").build()).execute());
    if made.is_err() {
        netlink.wait(netlink.handle.link().add(LinkVeth::new("dummy0", "dummy1").build()).execute()).unwrap();
        netlink.set_up(&netlink.find_link("dummy1").unwrap()).unwrap();
    }
    netlink.find_link("dummy0").unwrap()
}

fn config(interface: &str, allowed_ips: &str) -> Config {
    let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    let peer = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
    let text = format!(
        "[Interface]\nPrivateKey={key}\n{interface}\n[Peer]\nPublicKey={peer}\nAllowedIPs={allowed_ips}\n"
    );
    parse(&text, "wg0.conf".as_ref(), "wg0".parse().unwrap()).unwrap().config
}

/// The routes that an administrator made through the device, as `TABLE PREFIX`.
fn static_routes(netlink: &Netlink, link: &Link) -> Vec<String> {
    let mut found: Vec<String> = [AddressFamily::Inet, AddressFamily::Inet6]
        .into_iter()
        .flat_map(|family| netlink.routes(family).unwrap())
        .filter(|route| {
            device_of(route) == Some(link.index) && route.header.protocol == RouteProtocol::Static
        })
        .map(|route| format!("{} {}", table_of(&route), net_of(&route)))
        .collect();
    found.sort();
    found
}

/// The addresses of the device except link-local ones.
fn addresses(netlink: &Netlink, link: &Link) -> Vec<String> {
    let messages = netlink.handle.address().get().set_link_index_filter(link.index).execute();
    let mut found: Vec<String> = netlink
        .wait(messages.try_collect::<Vec<_>>())
        .unwrap()
        .into_iter()
        .filter_map(|message| {
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            })?;
            let link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            (!link_local).then(|| format!("{address}/{}", message.header.prefix_len))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn addresses_and_routes_are_added_and_undone_exactly() {
    in_a_namespace("addresses_and_routes_are_added_and_undone_exactly", |netlink| {
        let link = make_link(netlink);
        let by_hand = "192.168.77.0/24".parse().unwrap();
        netlink.set_up(&link).unwrap();
        // An address of its own: the kernel drops all IPv4 routes of a device with its last IPv4 address.
        netlink.add_address(&link, "192.0.2.7/32".parse().unwrap(), &mut Applied::default()).unwrap();
        netlink.add_route(&link, by_hand, MAIN_TABLE, &mut Applied::default()).unwrap();

        let config =
            config("Address = 10.9.0.1/24, fd99::1/64", "10.9.0.2, 10.0.0.0/8, fd00::/8, 192.168.77.0/24");
        let mut applied = netlink.apply(&link, &config, 1400).unwrap();
        assert_eq!(netlink.find_link("dummy0").unwrap().mtu, 1400);
        assert_eq!(addresses(netlink, &link), ["10.9.0.1/24", "192.0.2.7/32", "fd99::1/64"]);
        assert_eq!(static_routes(netlink, &link), ["254 10.0.0.0/8", "254 192.168.77.0/24", "254 fd00::/8"]);

        assert!(applied.undo(netlink).is_empty());
        assert!(applied.is_empty());
        assert_eq!(addresses(netlink, &link), ["192.0.2.7/32"], "the address made by hand stays");
        assert_eq!(static_routes(netlink, &link), ["254 192.168.77.0/24"], "the route made by hand stays");
        assert!(applied.undo(netlink).is_empty(), "undoing twice does nothing");
    });
}

#[test]
fn a_numbered_table_gets_the_default_route_and_gives_it_back() {
    in_a_namespace("a_numbered_table_gets_the_default_route_and_gives_it_back", |netlink| {
        let link = make_link(netlink);
        let config =
            config("Table = 51820\nAddress = 10.9.0.1/24, fd99::1/64", "0.0.0.0/0, ::/0, 10.9.0.0/24");
        let mut applied = netlink.apply(&link, &config, 1420).unwrap();
        let expected = ["51820 0.0.0.0/0", "51820 10.9.0.0/24", "51820 ::/0"];
        assert_eq!(static_routes(netlink, &link), expected);
        assert!(applied.undo(netlink).is_empty());
        assert_eq!(static_routes(netlink, &link), [""; 0]);
    });
}

#[test]
fn a_failure_takes_back_what_was_done_and_names_the_route() {
    in_a_namespace("a_failure_takes_back_what_was_done_and_names_the_route", |netlink| {
        let link = make_link(netlink);
        netlink.wait(netlink.handle.link().add(LinkVeth::new("veth0", "veth1").build()).execute()).unwrap();
        let other = netlink.find_link("veth0").unwrap();
        netlink.set_up(&other).unwrap();
        netlink.set_up(&netlink.find_link("veth1").unwrap()).unwrap();
        netlink
            .add_route(&other, "10.5.0.0/16".parse().unwrap(), MAIN_TABLE, &mut Applied::default())
            .unwrap();

        let config = config("Address = 10.9.0.1/24", "10.6.0.0/16, 10.5.0.0/16, 10.4.0.0/16");
        let error = netlink.apply(&link, &config, 1420).unwrap_err().to_string();
        assert!(error.starts_with("cannot add route 10.5.0.0/16 dev dummy0: "), "{error}");
        assert!(error.contains("it is there already"), "{error}");
        assert_eq!(addresses(netlink, &link), [""; 0]);
        assert_eq!(static_routes(netlink, &link), [""; 0]);
        assert_eq!(static_routes(netlink, &other), ["254 10.5.0.0/16"]);
    });
}

#[test]
fn a_device_that_vanished_leaves_nothing_to_undo() {
    in_a_namespace("a_device_that_vanished_leaves_nothing_to_undo", |netlink| {
        let link = make_link(netlink);
        let config = config("Address = 10.9.0.1/24, fd99::1/64", "10.0.0.0/8, fd00::/8");
        let mut applied = netlink.apply(&link, &config, 1420).unwrap();
        netlink.wait(netlink.handle.link().del(link.index).execute()).unwrap();
        let failures = applied.undo(netlink);
        assert!(failures.is_empty(), "{failures:?}");
        let name = "dummy0".parse().unwrap();
        assert!(matches!(netlink.link(&name), Err(RouteError::NoLink(_))));
    });
}

#[test]
fn the_mtu_follows_the_routes_to_the_endpoints() {
    in_a_namespace("the_mtu_follows_the_routes_to_the_endpoints", |netlink| {
        let interface = config("Address = 10.9.0.1/24", "").interface;
        assert_eq!(netlink.default_mtu(&interface, &[]), 1420, "without any route");
        assert_eq!(netlink.default_mtu(&interface, &["192.0.2.1:1".parse().unwrap()]), 1420, "unreachable");

        let link = make_link(netlink);
        netlink.set_mtu(&link, 1380).unwrap();
        netlink.set_up(&link).unwrap();
        netlink.add_address(&link, "192.0.2.2/24".parse().unwrap(), &mut Applied::default()).unwrap();
        assert_eq!(netlink.mtu_towards("192.0.2.1".parse().unwrap(), 0).unwrap(), 1380);
        assert_eq!(netlink.default_mtu(&interface, &["192.0.2.1:1".parse().unwrap()]), 1300);

        let mut route = route_message(&link, "198.51.100.0/24".parse().unwrap(), MAIN_TABLE);
        let metric = rtnetlink::packet_route::route::RouteMetric::Mtu(1300);
        route.attributes.push(RouteAttribute::Metrics(vec![metric]));
        netlink.wait(netlink.handle.route().add(route).execute()).unwrap();
        let both = ["192.0.2.1:1".parse().unwrap(), "198.51.100.1:1".parse().unwrap()];
        assert_eq!(netlink.default_mtu(&interface, &both), 1220);

        netlink.add_route(&link, "0.0.0.0/0".parse().unwrap(), MAIN_TABLE, &mut Applied::default()).unwrap();
        assert_eq!(netlink.default_mtu(&interface, &[]), 1300, "of the default route");
    });
}

#[test]
fn queue_limits_are_set_as_far_as_the_kernel_knows_them() {
    in_a_namespace("queue_limits_are_set_as_far_as_the_kernel_knows_them", |netlink| {
        let link = make_link(netlink);
        let limits =
            QueueLimits { tx_queue_len: Some(777), gso_max_bytes: Some(61_000), gso_max_segments: Some(44) };
        netlink.set_queue_limits(&link, limits);
        let links = netlink.handle.link().get().match_index(link.index).execute();
        let links = netlink.wait(links.try_collect::<Vec<_>>()).unwrap();
        let attributes = &links.first().unwrap().attributes;
        for expected in
            [LinkAttribute::TxQueueLen(777), LinkAttribute::GsoMaxSize(61_000), LinkAttribute::GsoMaxSegs(44)]
        {
            assert!(attributes.contains(&expected), "{expected:?}");
        }
    });
}

#[test]
fn a_missing_permission_says_what_to_do_and_ends_with_77() {
    let error = io::Error::from_raw_os_error(libc::EPERM);
    let error = Failure::Kernel(error).because(|| "add address 10.0.0.1/24 to wg0".to_owned());
    assert_eq!(error.exit_code(), crate::exit::Code::Permission);
    assert!(error.to_string().ends_with("run weft as root, or give it CAP_NET_ADMIN"), "{error}");
}

#[test]
fn the_tunnels_mtu_is_80_less_within_what_its_addresses_allow() {
    let ipv4 = config("Address=10.0.0.1", "").interface;
    let ipv6 = config("Address=fd00::1", "").interface;
    assert_eq!(mtu::tunnel_mtu(1500, &ipv4), 1420);
    assert_eq!(mtu::tunnel_mtu(1280, &ipv4), 1200);
    assert_eq!(mtu::tunnel_mtu(1280, &ipv6), 1280);
    assert_eq!(mtu::tunnel_mtu(0, &ipv4), 576);
    assert_eq!(mtu::tunnel_mtu(65_536, &ipv4), 65_455);
    assert_eq!(mtu::tunnel_mtu(u32::MAX, &ipv4), 65_455);
}
