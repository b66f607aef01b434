//! Tests against the kernel, in a fresh network namespace:
//!
//! ```text
//!   ┌─ fresh namespace ─────────────┐
//!   │  dummy0        veth0 ── veth1 │
//!   └───────────────────────────────┘
//! ```

use std::net::{IpAddr, SocketAddr};

use rtnetlink::{LinkDummy, LinkVeth};
use weft_lab::{Namespace, here};

use super::*;
use crate::routes::tests::config;
use crate::routes::{Family, Rule, RuleKind};

/// Runs a test in a fresh network namespace, or reports that it cannot.
fn in_a_namespace(body: impl FnOnce(&Netlink) + Send) {
    if here::namespaces_permitted() {
        Namespace::new("routes").unwrap().run(|| body(&Netlink::open().unwrap()));
    }
}

/// A dummy device, unless the kernel has none: then one end of a veth pair.
fn make_link(netlink: &Netlink) -> Link {
    let made = netlink.wait(netlink.handle().link().add(LinkDummy::new("dummy0").build()).execute());
    if made.is_err() {
        netlink
            .wait(netlink.handle().link().add(LinkVeth::new("dummy0", "dummy1").build()).execute())
            .unwrap();
        netlink.set_up(&netlink.find_link("dummy1").unwrap()).unwrap();
    }
    netlink.find_link("dummy0").unwrap()
}

/// The routes that an administrator made through the device, as `TABLE PREFIX`.
fn static_routes(netlink: &Netlink, link: &Link) -> Vec<String> {
    let mut found: Vec<String> = [AddressFamily::Inet, AddressFamily::Inet6]
        .into_iter()
        .flat_map(|family| {
            let routes: Vec<RouteMessage> = netlink.routes(family, Some(link), Vec::push).unwrap();
            routes
        })
        .filter(|route| route.header.protocol == RouteProtocol::Static)
        .map(|route| format!("{} {}", table_of(&route), net_of(&route)))
        .collect();
    found.sort();
    found
}

/// The addresses of the device except link-local ones.
fn addresses(netlink: &Netlink, link: &Link) -> Vec<String> {
    let mut found: Vec<String> = netlink
        .address_messages(link)
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
fn addresses_and_routes_are_added_and_removed_and_those_of_others_stay() {
    in_a_namespace(|netlink| {
        let link = make_link(netlink);
        netlink.set_up(&link).unwrap();
        let nets = ["10.9.0.1/24", "fd99::1/64"].map(|net| net.parse::<IpNet>().unwrap());
        let prefixes = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse::<IpNet>().unwrap());
        for net in nets {
            netlink.add_address(&link, net).unwrap();
        }
        assert!(netlink.add_address(&link, nets[0]).unwrap_err().to_string().contains("it is there already"));
        for prefix in prefixes {
            assert!(netlink.add_route(&link, prefix, MAIN_TABLE).unwrap());
            assert!(!netlink.add_route(&link, prefix, MAIN_TABLE).unwrap(), "it is there already");
        }
        assert_eq!(static_routes(netlink, &link), ["254 10.0.0.0/8", "254 fd00::/8"]);
        assert_eq!(addresses(netlink, &link), ["10.9.0.1/24", "fd99::1/64"]);
        let found = netlink.addresses(&link).unwrap();
        assert!(nets.iter().all(|net| found.contains(net)), "{found:?}");
        for _ in 0..2 {
            netlink.remove_route(&link, prefixes[0], MAIN_TABLE).unwrap();
            netlink.remove_address(&link, nets[1]).unwrap();
        }
        assert_eq!(static_routes(netlink, &link), ["254 fd00::/8"]);
        assert_eq!(addresses(netlink, &link), ["10.9.0.1/24"]);
        netlink.wait(netlink.handle().link().del(link.index).execute()).unwrap();
        netlink.remove_route(&link, prefixes[1], MAIN_TABLE).unwrap();
        netlink.remove_address(&link, nets[0]).unwrap();
        let name = "dummy0".parse().unwrap();
        assert!(matches!(netlink.link(&name), Err(RouteError::NoLink(_))));
    });
}

#[test]
fn the_first_address_of_a_network_goes_alone_and_the_routes_stay() {
    in_a_namespace(|netlink| {
        // By default, the kernel removes all of them.
        for name in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/promote_secondaries"), "0");
        }
        let link = make_link(netlink);
        netlink.set_up(&link).unwrap();
        let nets = ["10.9.0.1/24", "10.9.0.2/24", "10.9.0.3/24"].map(|net| net.parse::<IpNet>().unwrap());
        for net in nets {
            netlink.add_address(&link, net).unwrap();
        }
        assert!(netlink.add_route(&link, "10.0.0.0/8".parse().unwrap(), MAIN_TABLE).unwrap());
        netlink.remove_address(&link, nets[0]).unwrap();
        assert_eq!(addresses(netlink, &link), ["10.9.0.2/24", "10.9.0.3/24"]);
        assert_eq!(static_routes(netlink, &link), ["254 10.0.0.0/8"]);
    });
}

#[test]
fn a_route_of_another_program_is_named() {
    in_a_namespace(|netlink| {
        let link = make_link(netlink);
        netlink.set_up(&link).unwrap();
        netlink.wait(netlink.handle().link().add(LinkVeth::new("veth0", "veth1").build()).execute()).unwrap();
        let other = netlink.find_link("veth0").unwrap();
        netlink.set_up(&other).unwrap();
        netlink.set_up(&netlink.find_link("veth1").unwrap()).unwrap();
        let prefix = "10.5.0.0/16".parse().unwrap();
        assert!(netlink.add_route(&other, prefix, MAIN_TABLE).unwrap());
        let error = netlink.add_route(&link, prefix, MAIN_TABLE).unwrap_err().to_string();
        assert!(error.starts_with("cannot add route 10.5.0.0/16 dev dummy0: "), "{error}");
        assert!(error.contains("10.5.0.0/16 is already routed through veth0; remove"), "{error}");
        let nowhere = "fd05::/64".parse().unwrap();
        let mut message = route_message(&other, nowhere, MAIN_TABLE);
        message.header.kind = RouteType::BlackHole;
        message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Oif(_)));
        netlink.wait(netlink.handle().route().add(message).execute()).unwrap();
        let error = netlink.add_route(&link, nowhere, MAIN_TABLE).unwrap_err().to_string();
        assert!(error.contains("fd05::/64 is already routed to nowhere (blackhole)"), "{error}");
        // Another table has room for it.
        assert!(netlink.add_route(&link, prefix, 51_820).unwrap());
        assert!(netlink.tables_in_use().unwrap().contains(&51_820));
    });
}

#[test]
fn rules_are_added_found_and_removed_at_their_places() {
    in_a_namespace(|netlink| {
        let before = netlink.rules().unwrap();
        let rules: Vec<Rule> = Family::ALL
            .into_iter()
            .flat_map(|family| {
                // One that fits the old eight bits of a table's number, and one that does not.
                [
                    Rule { family, priority: 100, kind: RuleKind::Unmarked { mark: 77, table: 77 } },
                    Rule { family, priority: 99, kind: RuleKind::Unmarked { mark: 51_820, table: 51_820 } },
                    Rule { family, priority: 98, kind: RuleKind::MainWithoutDefault },
                    Rule { family, priority: 97, kind: RuleKind::MainWithoutDefault },
                ]
            })
            .collect();
        for rule in rules.iter().chain(&rules) {
            netlink.add_rule(rule).unwrap();
        }
        let found = netlink.rules().unwrap();
        assert_eq!(found.len(), before.len() + rules.len(), "{found:?}");
        for rule in &rules {
            let same =
                found.iter().find(|found| (found.family, found.priority) == (rule.family, rule.priority));
            let same = same.unwrap();
            match rule.kind {
                RuleKind::Unmarked { mark, table } => {
                    assert_eq!((same.mark, same.is_inverted, same.table), (Some(mark), true, table));
                }
                RuleKind::MainWithoutDefault => {
                    assert_eq!((same.mark, same.is_inverted, same.table), (None, false, MAIN_TABLE));
                }
            }
        }
        netlink.remove_rule(&rules[2]).unwrap();
        netlink.remove_rule(&rules[2]).unwrap();
        let places: Vec<u32> = netlink.rules().unwrap().iter().map(|rule| rule.priority).collect();
        assert!(places.contains(&97), "the same rule at another place stays: {places:?}");
        for rule in &rules {
            netlink.remove_rule(rule).unwrap();
        }
        assert_eq!(netlink.rules().unwrap(), before);
    });
}

#[test]
fn the_mtu_follows_the_routes_to_the_endpoints() {
    in_a_namespace(|netlink| {
        let interface = config("Address = 10.9.0.1/24", "");
        assert_eq!(netlink.default_mtu(&interface, &[], 0), 1420, "without any route");
        assert_eq!(
            netlink.default_mtu(&interface, &["192.0.2.1:1".parse().unwrap()], 0),
            1420,
            "unreachable"
        );

        let link = make_link(netlink);
        netlink.set_mtu(&link, 1380).unwrap();
        netlink.set_up(&link).unwrap();
        netlink.add_address(&link, "192.0.2.2/24".parse().unwrap()).unwrap();
        assert_eq!(netlink.mtu_towards("192.0.2.1:1".parse().unwrap(), 0).unwrap(), 1380);
        assert_eq!(netlink.default_mtu(&interface, &["192.0.2.1:1".parse().unwrap()], 0), 1300);

        let mut route = route_message(&link, "198.51.100.0/24".parse().unwrap(), MAIN_TABLE);
        let metric = rtnetlink::packet_route::route::RouteMetric::Mtu(1300);
        route.attributes.push(RouteAttribute::Metrics(vec![metric]));
        netlink.wait(netlink.handle().route().add(route).execute()).unwrap();
        let both = ["192.0.2.1:1".parse().unwrap(), "198.51.100.1:1".parse().unwrap()];
        assert_eq!(netlink.default_mtu(&interface, &both, 0), 1220);

        assert!(netlink.add_route(&link, "0.0.0.0/0".parse().unwrap(), MAIN_TABLE).unwrap());
        assert_eq!(netlink.default_mtu(&interface, &[], 0), 1300, "of the default route");
    });
}

#[test]
fn a_device_that_packets_do_not_leave_by_makes_no_large_mtu() {
    in_a_namespace(|netlink| {
        let config = config("Address = 10.9.0.1/24", "");
        let mtu = |endpoints: &[&str]| {
            let endpoints: Vec<SocketAddr> = endpoints.iter().map(|text| text.parse().unwrap()).collect();
            netlink.default_mtu(&config, &endpoints, 0)
        };
        netlink.set_up(&netlink.find_link("lo").unwrap()).unwrap();
        // A relay on this machine: its way on is not known.
        let here = ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "10.0.0.1:1"];
        let check = |expected| here.map(|endpoint| assert_eq!(mtu(&[endpoint]), expected, "{endpoint}"));

        let device = weft_tun::open(weft_tun::TunConfig::new("wide0")).unwrap();
        let wide = netlink.find_link("wide0").unwrap();
        netlink.set_mtu(&wide, 65_520).unwrap();
        netlink.set_up(&wide).unwrap();
        netlink.add_address(&wide, "10.0.0.1/24".parse().unwrap()).unwrap();
        check(1420);
        assert_eq!(mtu(&["10.0.0.2:1"]), 1420, "another program sends on what is in a TUN");
        // The TAP of a rootless container is all that leads out of it.
        assert!(netlink.add_route(&wide, "0.0.0.0/0".parse().unwrap(), MAIN_TABLE).unwrap());
        assert_eq!((mtu(&[]), mtu(&["192.0.2.1:1"])), (1420, 1420));
        check(1420);

        let pair = LinkVeth::new("up0", "up1").build();
        netlink.wait(netlink.handle().link().add(pair).execute()).unwrap();
        for name in ["up0", "up1"] {
            let link = netlink.find_link(name).unwrap();
            netlink.set_mtu(&link, 9000).unwrap();
            netlink.set_up(&link).unwrap();
        }
        let uplink = netlink.find_link("up0").unwrap();
        netlink.add_address(&uplink, "10.1.0.1/24".parse().unwrap()).unwrap();
        assert_eq!(mtu(&["10.1.0.2:1"]), 8920, "a link to other machines may be as wide as it says");
        netlink.remove_route(&wide, "0.0.0.0/0".parse().unwrap(), MAIN_TABLE).unwrap();
        assert!(netlink.add_route(&uplink, "0.0.0.0/0".parse().unwrap(), MAIN_TABLE).unwrap());
        check(8920);
        netlink.set_mtu(&uplink, 1400).unwrap();
        check(1320);
        assert_eq!(mtu(&["127.0.0.1:1", "10.1.0.2:1"]), 1320);
        drop(device);
    });
}

#[test]
fn an_mtu_that_is_too_small_for_ipv6_is_told_as_such() {
    in_a_namespace(|netlink| {
        let link = make_link(netlink);
        netlink.set_up(&link).unwrap();
        netlink.set_mtu(&link, 1279).unwrap();
        let told = [
            netlink.add_address(&link, "fd00::1/64".parse().unwrap()).unwrap_err(),
            netlink.add_route(&link, "fd01::/64".parse().unwrap(), MAIN_TABLE).unwrap_err(),
        ];
        for error in told.map(|error| error.to_string()) {
            assert!(error.contains("MTU 1279, and IPv6 needs 1280; set MTU = 1280"), "{error}");
        }
        let gone = Link { name: "gone0".to_owned(), index: 9999, mtu: 1420 };
        let error = netlink.add_route(&gone, "fd01::/64".parse().unwrap(), MAIN_TABLE).unwrap_err();
        assert!(error.to_string().contains("the interface is gone"), "{error}");
    });
}

#[test]
fn queue_limits_are_set_as_far_as_the_kernel_knows_them() {
    in_a_namespace(|netlink| {
        let link = make_link(netlink);
        let limits =
            QueueLimits { tx_queue_len: Some(777), gso_max_bytes: Some(61_000), gso_max_segments: Some(44) };
        netlink.set_queue_limits(&link, limits);
        let links = netlink.handle().link().get().match_index(link.index).execute();
        let links = netlink.list(links).unwrap();
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
    assert_eq!(error.exit_code(), weft_config::exit::Code::Permission);
    assert!(error.to_string().ends_with("run weft as root, or give it CAP_NET_ADMIN"), "{error}");
}
