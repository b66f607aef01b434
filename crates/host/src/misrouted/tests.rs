use std::collections::HashMap;
use std::path::Path;

use super::*;

/// A routing table: where addresses go. All others go through `eth0`.
struct Table {
    hops: HashMap<&'static str, Hop>,
    /// The interface for all other addresses of a family.
    others: [Hop; 2],
}

impl Routes for Table {
    fn hop(&self, destination: IpAddr, is_own: bool) -> Hop {
        let own = if is_own { format!("own {destination}") } else { destination.to_string() };
        let others = &self.others[usize::from(destination.is_ipv6())];
        self.hops.get(own.as_str()).unwrap_or(others).clone()
    }

    /// The other VPN is within the tunnel if the table has `outer`.
    fn hop_of_outer(&self, destination: IpAddr, is_own: bool) -> Option<Hop> {
        let hop = self.hop(destination, is_own);
        self.hops.get("outer").filter(|_| hop == through("tun9")).cloned()
    }

    /// The tunnel that this one takes over stands where other entries have their interface.
    fn taken_from(&self, _: IpAddr) -> Option<String> {
        match self.hops.get("taken")? {
            Hop::Through(device) => Some(device.clone()),
            _ => None,
        }
    }

    fn is_of_weft(&self, device: &str) -> bool {
        self.hops.get("weft") == Some(&through(device))
    }

    /// The networks stand where other entries have their interface, as `net 10.8.0.0/24`.
    fn networks(&self) -> Vec<(IpNet, String)> {
        let network = |(name, hop): (&&str, &Hop)| match (name.strip_prefix("net "), hop) {
            (Some(network), Hop::Through(device)) => Some((network.parse().unwrap(), device.clone())),
            _ => None,
        };
        self.hops.iter().filter_map(network).collect()
    }

    /// The prefix of the route that drops stands where another entry has its interface.
    fn blocked_by(&self, destination: IpAddr) -> Option<Blocking> {
        let Hop::Through(prefix) = self.hops.get("unreachable")? else { return None };
        let prefix: IpNet = prefix.parse().unwrap();
        prefix.contains(&destination).then_some(Blocking { word: "unreachable", prefix, metric: 7 })
    }
}

#[test]
fn a_route_that_drops_what_the_tunnel_carries_is_told() {
    let lost = |address: &'static str| (address, Hop::Nowhere);
    let [tunnel, wan] = ["wg0", "eth0"].map(through);
    #[rustfmt::skip]
    let cases: &[(&str, Others<'_>, &[Known], &'static str, &str)] = &[
        (ALL, [&Hop::Nowhere, &tunnel], &[], "0.0.0.0/0", "no route leads to 1.1.1.1 and other addresses of IPv4: the route `unreachable default` of table main takes them; if it is not meant, remove it (`ip route del unreachable default metric 7`)"),
        (ALL, [&tunnel, &tunnel], &[lost("185.199.108.1")], "128.0.0.0/1", "no route leads to 185.199.108.1 and other addresses of IPv4: the route `unreachable 128.0.0.0/1`"),
        (ALL, [&tunnel, &Hop::Nowhere], &[], "2000::/3", "no route leads to 2001:4860::1 and other addresses of IPv6: the route `unreachable 2000::/3` of table main takes them; if it is not meant, remove it (`ip -6 route del unreachable 2000::/3 metric 7`)"),
        // One address, a route that another one comes before, and a tunnel that carries no such family.
        (ALL, [&tunnel, &tunnel], &[lost("1.1.1.1")], "1.1.1.1/32", ""),
        (ALL, [&tunnel, &tunnel], &[], "0.0.0.0/0", ""),
        ("0.0.0.0/0", [&tunnel, &Hop::Nowhere], &[], "::/0", ""),
    ];
    for (allowed_ips, [v4, v6], hops, prefix, expected) in cases {
        let mut hops = hops.to_vec();
        hops.extend([("own 203.0.113.9", wan.clone()), ("unreachable", through(prefix))]);
        let said = said(["", allowed_ips], "127.0.0.1", &hops, [(*v4).clone(), (*v6).clone()]).join("\n");
        assert!(said.starts_with(expected) && said.is_empty() == expected.is_empty(), "{prefix}: {said}");
    }
}

#[test]
fn a_second_full_tunnel_is_told_with_the_command_that_takes_the_other_down() {
    let [own, other, wan] = ["wg0", "tun9", "eth0"].map(through);
    let endpoint = |hop: &Hop| ("own 203.0.113.9", hop.clone());
    let captured = "traffic of IPv4, such as that to 1.1.1.1, goes through tun9, not through the tunnel; take tun9 down \
                    (`weft down tun9`), or give one of the two narrower AllowedIPs";
    let taken = |command: &str| {
        format!(
            "tun9 carries all of IPv4 now, and none of it once this tunnel is up; take tun9 down first{command}, or give \
             narrower AllowedIPs"
        )
    };
    for (v4, hops, expected) in [
        (&other, vec![endpoint(&wan), ("weft", other.clone())], captured.to_owned()),
        (&own, vec![endpoint(&wan), ("taken", other.clone())], taken("")),
        (
            &own,
            vec![endpoint(&wan), ("taken", other.clone()), ("weft", other.clone())],
            taken(" (`weft down tun9`)"),
        ),
        // The packets of this tunnel go through the other one, which goes on.
        (&own, vec![endpoint(&other), ("taken", other.clone())], String::new()),
    ] {
        let said = said(["", "0.0.0.0/0"], "127.0.0.1", &hops, [v4.clone(), own.clone()]);
        assert_eq!(said.join("\n"), expected);
    }
}

type Known = (&'static str, Hop);
type Others<'a> = [&'a Hop; 2];

fn through(device: &str) -> Hop {
    Hop::Through(device.to_owned())
}

/// Returns what is said of a file with these lines, on a machine with this system's name server and these
/// routes, if everything else goes through `v4` and `v6`.
fn said(file: [&str; 2], system: &str, hops: &[Known], others: [Hop; 2]) -> Vec<String> {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{}\n[Peer]\n\
         PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = {}\nEndpoint = 203.0.113.9:1\n",
        file[0], file[1]
    );
    let config = weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
    let table = Table { hops: hops.iter().cloned().collect(), others };
    let endpoints: Vec<SocketAddr> = config.endpoint_addresses().into_iter().flatten().collect();
    let found = find(&config, "wg0", &endpoints, || vec![system.parse().unwrap()], &table);
    found.iter().map(|misrouted| format!("{misrouted}; {}", misrouted.advice())).collect()
}

const ALL: &str = "0.0.0.0/0, ::/0";

#[test]
fn name_servers_that_the_tunnel_does_not_lead_to_are_told() {
    let tunnel = || [through("wg0"), through("wg0")];
    let lan = |server: &'static str| [(server, through("eth0"))];
    let past = |server: &str| format!("{server} is reached through eth0, not through the tunnel");
    // The file, the hops, and what is said first.
    #[rustfmt::skip]
    let cases: &[(&str, &str, &[Known], &str)] = &[
        ("DNS = 10.9.0.53", ALL, &[], ""),
        ("DNS = 172.16.0.1", ALL, &lan("172.16.0.1"), &(past("172.16.0.1") + "; add 172.16.0.1/32 to AllowedIPs")),
        ("DNS = fd01::53", ALL, &lan("fd01::53"), &(past("fd01::53") + "; add fd01::53/128 to AllowedIPs")),
        ("DNS = 10.9.0.53", "10.9.0.2/32", &lan("10.9.0.53"), &(past("10.9.0.53") + "; add 10.9.0.53/32 to AllowedIPs")),
        ("DNS = 10.9.0.53", "10.9.0.2/32", &[("10.9.0.53", Hop::Nowhere)], "no route leads to the name server 10.9.0.53; add"),
        ("DNS = 10.9.0.53, ~corp", "10.9.0.2/32", &lan("10.9.0.53"), &past("10.9.0.53")),
        // What is asked on this machine.
        ("DNS = 127.0.0.1", ALL, &[("127.0.0.1", Hop::Here)], ""),
        ("DNS = 10.9.0.1\nAddress = 10.9.0.1/24", ALL, &[("10.9.0.1", Hop::Here)], ""),
        ("DNS = fe80::1", ALL, &lan("fe80::1"), ""),
        // A route cannot help.
        ("DNS = 203.0.113.9", ALL, &lan("203.0.113.9"), &(past("203.0.113.9") + "; it is the address of an endpoint too")),
        ("DNS = 172.16.0.1", "0.0.0.0/0, ::/0, 172.16.0.1", &lan("172.16.0.1"), &(past("172.16.0.1") + "; another route or rule comes first")),
        // The kill switch.
        ("DNS = 172.16.0.1\n# weft: KillSwitch = on", ALL, &lan("172.16.0.1"), "no name can be looked up: 172.16.0.1 is reached through eth0"),
        ("DNS = 172.16.0.1, 10.9.0.53\n# weft: KillSwitch = on", ALL, &lan("172.16.0.1"), &(past("172.16.0.1") + ", and the kill switch blocks that; add")),
        ("DNS = 172.16.0.1\n# weft: KillSwitch = allow-local", ALL, &lan("172.16.0.1"), &(past("172.16.0.1") + "; add")),
        ("DNS = 198.51.100.5\n# weft: KillSwitch = allow-local", ALL, &lan("198.51.100.5"), "no name can be looked up"),
        ("Table = off\nDNS = 172.16.0.1\n# weft: KillSwitch = on", ALL, &lan("172.16.0.1"), "no name can be looked up"),
        ("# weft: KillSwitch = on", ALL, &lan("192.168.1.1"), "no name can be looked up: 192.168.1.1 is reached through eth0"),
        ("# weft: KillSwitch = allow-local", ALL, &lan("192.168.1.1"), "no name can be looked up"),
        // The servers that the system had before.
        ("", ALL, &lan("192.168.1.1"), "the system's name server 192.168.1.1 is reached through eth0, not through the tunnel; give DNS"),
        ("", "10.9.0.2/32", &lan("192.168.1.1"), ""),
        // Routes of the user's own.
        ("Table = off\nDNS = 172.16.0.1", ALL, &lan("172.16.0.1"), ""),
        ("Table = 77\nDNS = 172.16.0.1", ALL, &lan("172.16.0.1"), ""),
    ];
    for (interface, allowed_ips, hops, expected) in cases {
        let mut hops = hops.to_vec();
        hops.push(("own 203.0.113.9", through("eth0")));
        let said = said([interface, allowed_ips], "192.168.1.1", &hops, tunnel());
        match &said[..] {
            [] => assert!(expected.is_empty(), "{interface}, {allowed_ips}: nothing, and not {expected}"),
            [one] => assert!(!expected.is_empty() && one.starts_with(expected), "{interface}: {one}"),
            more => panic!("{interface}: {more:?}"),
        }
    }
}

#[test]
fn a_public_server_beside_a_split_tunnel_and_a_spare_one_are_minor() {
    let levels = |dns: &str, hops: &[Known], allowed_ips: &str| -> Vec<bool> {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\nDNS = {dns}\n[Peer]\n\
             PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = {allowed_ips}\n"
        );
        let config = weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
        let table = Table { hops: hops.iter().cloned().collect(), others: [through("wg0"), Hop::Nowhere] };
        let found = find(&config, "wg0", &[], Vec::new, &table);
        let minor = |found: &Misrouted| matches!(found, Misrouted::NameServer { is_minor: true, .. });
        found.iter().map(minor).collect()
    };
    let lan = |server: &'static str| (server, through("eth0"));
    assert_eq!(levels("9.9.9.9", &[lan("9.9.9.9")], "10.9.0.0/24"), [true]);
    assert_eq!(levels("9.9.9.9", &[lan("9.9.9.9")], ALL), [false]);
    assert_eq!(levels("100.100.0.1", &[lan("100.100.0.1")], "10.9.0.0/24"), [false]);
    // A machine without IPv6 does not miss the second one.
    assert_eq!(levels("10.9.0.53, 2620:fe::fe", &[], "0.0.0.0/0"), [true]);
    assert_eq!(levels("2620:fe::fe", &[], "0.0.0.0/0"), [false]);
}

#[test]
fn traffic_that_goes_past_a_tunnel_is_told() {
    let [tunnel, wan, vpn] = ["wg0", "eth0", "tun9"].map(through);
    let without_private = "0.0.0.0/5, 8.0.0.0/7, 11.0.0.0/8, 12.0.0.0/6, 16.0.0.0/4, 32.0.0.0/3, 64.0.0.0/2, \
                           128.0.0.0/3, 160.0.0.0/5, 168.0.0.0/6, 172.0.0.0/12, 173.0.0.0/8, 174.0.0.0/7, \
                           176.0.0.0/4, 192.0.0.0/4, 208.0.0.0/4";
    let ipv6 = "the tunnel carries IPv4 only, and all of IPv6 goes past it through eth0; add ::/0";
    #[rustfmt::skip]
    let cases: &[(&str, &str, Others<'_>, &[Known], &str)] = &[
        ("", ALL, [&tunnel, &tunnel], &[], ""),
        ("", "0.0.0.0/0", [&tunnel, &Hop::Nowhere], &[], ""),
        ("", "0.0.0.0/0", [&tunnel, &wan], &[], ipv6),
        ("", "0.0.0.0/1, 128.0.0.0/1", [&tunnel, &wan], &[], ipv6),
        ("", without_private, [&tunnel, &wan], &[], ipv6),
        ("# weft: KillSwitch = on", "0.0.0.0/0", [&tunnel, &wan], &[], ""),
        ("Table = off", "0.0.0.0/0", [&wan, &wan], &[], ""),
        ("Table = 77", "0.0.0.0/0", [&wan, &wan], &[], ""),
        ("", "::/0", [&wan, &tunnel], &[], "the tunnel carries IPv6 only, and all of IPv4 goes past it through eth0; if it is not meant, add 0.0.0.0/0"),
        ("", "::/0", [&Hop::Nowhere, &tunnel], &[], ""),
        ("# weft: KillSwitch = on", "::/0", [&wan, &tunnel], &[], ""),
        ("", "10.8.0.0/16, fd00::/8", [&wan, &wan], &[("10.8.0.1", tunnel.clone()), ("fd00::1", tunnel.clone())], ""),
        // Another VPN.
        ("", ALL, [&vpn, &tunnel], &[], "traffic of IPv4, such as that to 1.1.1.1, goes through tun9, not"),
        ("", ALL, [&tunnel, &tunnel], &[("208.67.222.222", vpn.clone())], "traffic of IPv4, such as that to 208.67.222.222"),
        ("", ALL, [&vpn, &tunnel], &[("outer", tunnel.clone())], "traffic of IPv4, such as that to 1.1.1.1, goes through tun9, which is within this"),
        ("", ALL, [&vpn, &tunnel], &[("outer", wan.clone())], "traffic of IPv4, such as that to 1.1.1.1, goes through tun9, not"),
        ("FwMark = 7", "203.0.113.0/24", [&tunnel, &wan], &[("own 203.0.113.9", vpn.clone()), ("outer", tunnel.clone())], "203.0.113.9:1 is reached through tun9, whose packets go through this tunnel"),
        ("", "10.8.0.0/16", [&vpn, &vpn], &[("outer", tunnel.clone()), ("own 203.0.113.9", wan.clone())], ""),
        ("", ALL, [&tunnel, &vpn], &[], "traffic of IPv6, such as that to 2001:4860::1, goes through tun9"),
        ("", "10.8.0.0/16, 10.9.0.0/16", [&vpn, &vpn], &[], "traffic to 10.8.0.0/16 and 1 more of AllowedIPs go through tun9"),
        ("", "10.8.0.7/32", [&wan, &wan], &[], "traffic to 10.8.0.7/32 goes through eth0, not"),
        // The local network is that of the tunnel too, and its first address is the own one.
        ("Address = 10.6.0.1/24", "10.6.0.0/24", [&wan, &wan], &[("10.6.0.1", Hop::Here)], "traffic to 10.6.0.0/24 goes through eth0, not"),
        ("Address = 10.6.0.1/24", "10.6.0.1/32", [&wan, &wan], &[("10.6.0.1", Hop::Here)], ""),
        ("Address = 10.8.0.2/24", "10.8.0.0/24", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through eth0, not through the tunnel; give the tunnel another network, at its other ends too; or give Address without its network (/32, /128), and single addresses to AllowedIPs, such as 10.8.0.1/32"),
        ("Address = fd08::2/64", "fd08::/64", [&wan, &wan], &[("net fd08::/64", wan.clone())], "fd08::/64 is the network of eth0 too"),
        // An address of the local network comes later, or its route has a metric.
        ("Address = 10.8.0.2/24", "10.8.0.0/24", [&tunnel, &wan], &[("own 203.0.113.9", wan.clone()), ("net 10.8.0.0/24", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through the tunnel, and what is in the network of eth0 is not reached; give the tunnel another network, at its other ends too; or give Address without its network (/32, /128), and single addresses to AllowedIPs, such as 10.8.0.1/32"),
        ("", "10.8.0.0/24", [&tunnel, &wan], &[("net 10.8.0.0/24", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through the tunnel, and what is in the network of eth0 is not reached; give the network behind the peer other addresses; or list single ones in AllowedIPs in place of 10.8.0.0/24, such as 10.8.0.1/32"),
        // The first address is this machine's, by the file or by another interface.
        ("Address = 10.8.0.1/24", "10.8.0.0/24", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through eth0, not through the tunnel; give the tunnel another network, at its other ends too; or give Address without its network (/32, /128), and single addresses to AllowedIPs, such as 10.8.0.127/32"),
        ("", "10.8.0.0/24", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone()), ("10.8.0.1", Hop::Here)], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through eth0, not through the tunnel; give the network behind the peer other addresses; or list single ones in AllowedIPs in place of 10.8.0.0/24, such as 10.8.0.127/32"),
        // A default route does not come before it.
        ("Address = 10.8.0.2/24", ALL, [&tunnel, &tunnel], &[("own 203.0.113.9", wan.clone()), ("net 10.8.0.0/24", wan.clone()), ("10.8.0.1", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through eth0"),
        ("Address = 10.8.0.2/24", "10.8.0.1/32", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone())], "10.8.0.0/24 is the network of eth0 too: traffic to it goes through eth0"),
        ("Address = 10.8.0.2/24", "10.8.0.1/32", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone()), ("10.8.0.1", tunnel.clone())], ""),
        ("Address = 10.8.0.2/32", "10.8.0.1/32", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone()), ("10.8.0.1", tunnel.clone())], ""),
        ("Address = 10.8.0.2/24", "10.9.0.0/24", [&wan, &wan], &[("net 10.8.0.0/24", wan.clone()), ("10.9.0.1", tunnel.clone())], ""),
        // It is the own one, and another one.
        ("Address = 10.8.0.2/24", "10.8.0.0/24", [&tunnel, &wan], &[("net 10.8.0.0/24", tunnel.clone()), ("net 10.8.0.0/16", wan.clone())], ""),
        ("Address = fe80::2/64", "10.8.0.0/24", [&tunnel, &wan], &[("net fe80::/64", wan.clone())], ""),
        // The local network is a part of the prefix.
        ("", "10.0.0.0/8", [&tunnel, &wan], &[("10.0.0.1", wan.clone())], ""),
        // The endpoint.
        ("FwMark = 7", "203.0.113.0/24", [&tunnel, &wan], &[("own 203.0.113.9", wan.clone())], ""),
        ("", "203.0.113.0/24", [&tunnel, &wan], &[], "203.0.113.9:1 is reached through the tunnel itself"),
        ("Table = off", "203.0.113.0/24", [&tunnel, &wan], &[], "203.0.113.9:1 is reached through the tunnel itself"),
        ("Table = 77", "10.8.0.0/16", [&tunnel, &wan], &[], "203.0.113.9:1 is reached through the tunnel itself"),
    ];
    for (interface, allowed_ips, [v4, v6], hops, expected) in cases {
        let mut hops = hops.to_vec();
        if *allowed_ips != "203.0.113.0/24" && *allowed_ips != "10.8.0.0/16" {
            hops.push(("own 203.0.113.9", wan.clone()));
        }
        let said = said([interface, allowed_ips], "127.0.0.1", &hops, [(*v4).clone(), (*v6).clone()]);
        match &said[..] {
            [] => assert!(expected.is_empty(), "{interface}, {allowed_ips}: nothing, and not {expected}"),
            [one] => assert!(
                !expected.is_empty() && one.starts_with(expected),
                "{interface}, {allowed_ips}: {one}"
            ),
            more => panic!("{interface}, {allowed_ips}: {more:?}"),
        }
    }
}

#[test]
fn the_key_is_blamed_that_has_the_network() {
    let wan = through("eth0");
    let key = |interface: &str| {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{interface}\n[Peer]\n\
             PublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = 10.8.0.0/24\n"
        );
        let config = weft_config::parse(&text, Path::new("wg0.conf"), "wg0".parse().unwrap()).unwrap().config;
        let hops = [("net 10.8.0.0/24", wan.clone())].into_iter().collect();
        let found = find(&config, "wg0", &[], Vec::new, &Table { hops, others: [wan.clone(), wan.clone()] });
        found.iter().find_map(|found| found.network().map(|_| found.key()))
    };
    assert_eq!(key(""), Some("AllowedIPs"));
    assert_eq!(key("Address = 10.8.0.2/24"), Some("Address"));
}
