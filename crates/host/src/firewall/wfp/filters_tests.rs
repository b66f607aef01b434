//! The filters as a list, and which packets they let pass.

use std::fmt::Write as _;

use super::super::super::OwnPackets;
use super::super::evaluation::{DATAGRAM, ETHERNET, Packet, SYN, TUNNEL, V6, WEFT, passes};
use super::*;

fn allowed(dns: &[&str]) -> Local {
    Local::Allowed { dns: dns.iter().map(|server| server.parse().unwrap()).collect() }
}

fn filters_with(local: Local, tunnel: Option<u64>) -> Vec<Filter> {
    let machine = Machine { program: WEFT.to_vec(), tunnel };
    of_kill_switch(&KillSwitch { own: OwnPackets::Program, local }, &machine)
}

fn filters(local: Local) -> Vec<Filter> {
    filters_with(local, Some(TUNNEL))
}

/// The filters as `filters.txt` has them: one line for equal ones of several layers.
fn text(filters: &[Filter]) -> String {
    let mut lines: Vec<(&Filter, String)> = Vec::new();
    for filter in filters {
        let layer = format!("{:?}", filter.layer);
        match lines.last_mut() {
            Some((first, layers)) if Filter { layer: filter.layer, ..(*first).clone() } == *filter => {
                *layers += &format!(" {layer}");
            }
            _ => lines.push((filter, layer)),
        }
    }
    let mut text = String::new();
    for (filter, layers) in lines {
        let verdict = if filter.is_permit { "permit" } else { "block" };
        let _ = write!(text, "{:2} {verdict} {layers}: {}", filter.weight, filter.what);
        for condition in &filter.conditions {
            let _ = match condition {
                Condition::Loopback => write!(text, ", loopback"),
                Condition::Program(_) => write!(text, ", program weft.exe"),
                Condition::Interface(_) => write!(text, ", interface wg0"),
                Condition::ForwardedTo(_) => write!(text, ", to interface wg0"),
                Condition::Protocol(number) => write!(text, ", protocol {number}"),
                Condition::LocalPort(port) => write!(text, ", local port {port}"),
                Condition::RemotePort(port) => write!(text, ", remote port {port}"),
                Condition::IcmpType(kind) => write!(text, ", type {kind}"),
                Condition::IcmpCode(code) => write!(text, ", code {code}"),
                Condition::Local(net) => write!(text, ", local {net}"),
                Condition::Remote(net) => write!(text, ", remote {net}"),
                Condition::Destination(net) => write!(text, ", to {net}"),
            };
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_filters_are_those_that_the_documentation_links_to() {
    let text = text(&filters(allowed(&["192.168.1.1", "9.9.9.9"])));
    assert_eq!(text, include_str!("filters.txt"));
}

#[test]
fn without_local_networks_there_are_no_other_filters() {
    let expected = "\
12 permit ConnectV4 ConnectV6 AcceptV4 AcceptV6: loopback, loopback
12 permit ConnectV4 ConnectV6 AcceptV4 AcceptV6: the tunnel's own packets, program weft.exe, protocol 17
12 permit ConnectV4: DHCP, protocol 17, local port 68, remote port 67, remote 10.0.0.0/8, remote 172.16.0.0/12, \
remote 192.168.0.0/16, remote 169.254.0.0/16, remote 255.255.255.255/32
12 permit AcceptV4: DHCP, protocol 17, local port 68, remote port 67
12 permit ConnectV6: DHCPv6, protocol 17, local port 546, remote port 547, local fe80::/10, remote ff02::1:2/128, \
remote ff05::1:3/128
12 permit AcceptV6: DHCPv6, protocol 17, local port 546, remote port 547, remote fe80::/10
12 permit ConnectV6: neighbour discovery, protocol 58, type 133, type 134, type 135, type 136
12 permit AcceptV6: neighbour discovery, protocol 58, type 133, type 134, type 135, type 136, type 137
12 permit ConnectV6: multicast listeners, protocol 58, type 130, type 131, type 132, type 143, remote ff02::/16
12 permit AcceptV6: multicast listeners, protocol 58, type 130, type 131, type 132, type 143, remote fe80::/10
12 permit ConnectV4 AcceptV4: path MTU, protocol 1, type 3, code 4
12 permit ConnectV6 AcceptV6: path MTU, protocol 58, type 2
 0 block ConnectV4 ConnectV6 AcceptV4 AcceptV6 ForwardV4 ForwardV6: blocked
";
    assert_eq!(text(&filters_with(Local::Blocked, None)), expected);
}

#[test]
fn a_key_follows_from_the_interface_and_all_of_the_filter() {
    let (wg0, wg1): (InterfaceName, InterfaceName) = ("wg0".parse().unwrap(), "wg1".parse().unwrap());
    let all = filters(allowed(&["192.168.1.1"]));
    let keys: BTreeSet<u128> = all.iter().map(|filter| filter.key(&wg0)).collect();
    assert_eq!(keys.len(), all.len(), "each has its own");
    assert!(all.iter().all(|filter| !keys.contains(&filter.key(&wg1))));
    let first = &all[0];
    assert_eq!(first.key(&wg0), first.clone().key(&wg0));
    let others = [
        Filter { weight: 1, ..first.clone() },
        Filter { is_permit: false, ..first.clone() },
        Filter { layer: Layer::ForwardV6, ..first.clone() },
        Filter { conditions: vec![Condition::Interface(2)], ..first.clone() },
    ];
    assert!(others.iter().all(|other| !keys.contains(&other.key(&wg0))));
    let moved = Machine { program: b"elsewhere\\weft.exe".to_vec(), tunnel: Some(TUNNEL) };
    let switch = KillSwitch { own: OwnPackets::Program, local: Local::Blocked };
    let moved: Vec<u128> = of_kill_switch(&switch, &moved).iter().map(|filter| filter.key(&wg0)).collect();
    assert_eq!(moved.iter().filter(|key| !keys.contains(key)).count(), 4, "the tunnel's own packets");
}

fn icmp(protocol: u8, kind: u8, code: u8, remote: &'static str) -> Packet {
    let base = if protocol == ICMP { SYN } else { V6 };
    Packet { protocol, icmp: (kind, code), remote: (remote, 0), local: (base.local.0, 0), ..base }
}

/// Own packets, and those without which there is no network.
fn let_pass() -> Vec<Packet> {
    let loopback =
        Packet { is_loopback: true, on: 1, local: ("127.0.0.1", 1), remote: ("127.0.0.1", 80), ..SYN };
    let v6_loopback = Packet { local: ("::1", 1), remote: ("::1", 53), ..loopback };
    // A program that talks to the tunnel's own address.
    let to_itself = Packet { local: ("10.0.0.2", 1), remote: ("10.0.0.2", 80), ..loopback };
    let own = Packet { program: WEFT, remote: ("192.0.2.1", 51_820), ..DATAGRAM };
    let own_v6 = Packet { program: WEFT, remote: ("2001:db8::1", 1), ..V6 };
    let mut packets = Vec::new();
    for packet in [loopback, v6_loopback, to_itself, own, own_v6] {
        packets.extend([packet, packet.inbound()]);
    }
    let dhcp = Packet { local: ("0.0.0.0", 68), remote: ("255.255.255.255", 67), ..DATAGRAM };
    let dhcp6 = Packet { local: ("fe80::9", 546), remote: ("ff02::1:2", 547), ..V6 };
    packets.extend([
        dhcp,
        Packet { local: ("192.168.1.9", 68), remote: ("192.168.1.1", 67), ..dhcp },
        Packet { remote: ("203.0.113.1", 67), ..dhcp }.inbound(),
        dhcp6,
        Packet { remote: ("fe80::1", 547), ..dhcp6 }.inbound(),
    ]);
    packets.extend([133, 135, 136].map(|kind| icmp(ICMPV6, kind, 0, "2001:db8::7")));
    packets.extend([134, 135, 136, 137].map(|kind| icmp(ICMPV6, kind, 0, "fe80::1").inbound()));
    packets.extend([131, 132, 143].map(|kind| icmp(ICMPV6, kind, 0, "ff02::16")));
    packets.extend([
        icmp(ICMPV6, 130, 0, "fe80::1").inbound(),
        icmp(ICMP, 3, 4, "203.0.113.1"),
        icmp(ICMP, 3, 4, "203.0.113.1").inbound(),
        icmp(ICMPV6, 2, 0, "2001:db8::7"),
        icmp(ICMPV6, 2, 0, "2001:db8::7").inbound(),
    ]);
    packets
}

fn through_the_tunnel() -> Vec<Packet> {
    let (v4, v6) = (Packet { on: TUNNEL, ..SYN }, Packet { on: TUNNEL, ..V6 });
    let dns = Packet { remote: ("9.9.9.9", 53), on: TUNNEL, ..DATAGRAM };
    let lan_behind_it = Packet { remote: ("192.168.7.1", 53), on: TUNNEL, ..DATAGRAM };
    let forwarded = Packet { forwarded: Some((ETHERNET, TUNNEL)), ..SYN };
    let forwarded_v6 = Packet { forwarded: Some((ETHERNET, TUNNEL)), ..V6 };
    vec![v4, v4.inbound(), v6, v6.inbound(), dns, lan_behind_it, forwarded, forwarded_v6]
}

#[test]
fn what_the_tunnel_and_the_network_need_passes() {
    for local in [Local::Blocked, allowed(&[])] {
        let filters = filters(local.clone());
        for packet in let_pass().into_iter().chain(through_the_tunnel()) {
            assert!(passes(&filters, packet), "{packet:?}");
        }
    }
}

#[test]
fn while_there_is_no_adapter_nothing_takes_its_place() {
    for local in [Local::Blocked, allowed(&[])] {
        let without = filters_with(local, None);
        for packet in let_pass() {
            assert!(passes(&without, packet), "{packet:?}");
        }
        for packet in through_the_tunnel() {
            assert!(!passes(&without, packet), "{packet:?}");
        }
    }
}

/// What never leaves, with local networks or without.
fn held_back() -> Vec<Packet> {
    let of_weft = Packet { program: WEFT, ..SYN };
    let ping = icmp(ICMP, 8, 0, "203.0.113.1");
    let mut packets = Vec::new();
    for packet in [
        SYN,
        DATAGRAM,
        V6,
        of_weft,
        ping,
        icmp(ICMPV6, 128, 0, "2001:db8:1::9"),
        icmp(ICMP, 3, 3, "203.0.113.1"),
        Packet { on: TUNNEL + 1, ..SYN },
        Packet { remote: ("9.9.9.9", 53), ..DATAGRAM },
        Packet { remote: ("192.168.1.1", 53), ..DATAGRAM },
        Packet { remote: ("192.168.1.1", 853), ..SYN },
        Packet { remote: ("fe80::1", 53), ..V6 },
        // Protocols that have neither ports nor types.
        Packet { protocol: 47, ..SYN },
        // Carrier-grade NAT is the provider's network.
        Packet { remote: ("100.64.0.1", 80), ..SYN },
    ] {
        packets.extend([packet, packet.inbound()]);
    }
    let dhcp = Packet { local: ("192.168.1.9", 68), remote: ("203.0.113.1", 67), ..DATAGRAM };
    packets.extend([
        // Every program may use the ports of DHCP.
        dhcp,
        Packet { remote: ("203.0.113.1", 53), ..dhcp },
        Packet { local: ("2001:db8::9", 546), remote: ("2001:db8:1::9", 547), ..V6 }.inbound(),
        Packet { local: ("fe80::9", 546), remote: ("2001:db8:1::9", 547), ..V6 },
        // Redirects and queries, but not from here.
        icmp(ICMPV6, 137, 0, "2001:db8::7"),
        icmp(ICMPV6, 143, 0, "2001:db8::7"),
        icmp(ICMPV6, 130, 0, "2001:db8::7").inbound(),
    ]);
    for forwarded in [(ETHERNET, ETHERNET + 1), (TUNNEL, ETHERNET)] {
        packets.push(Packet { forwarded: Some(forwarded), ..SYN });
        packets.push(Packet { forwarded: Some(forwarded), ..V6 });
    }
    packets
}

#[test]
fn nothing_else_passes() {
    for local in [Local::Blocked, allowed(&[]), allowed(&["9.9.9.9", "1.1.1.1"])] {
        let filters = filters(local.clone());
        for packet in held_back() {
            assert!(!passes(&filters, packet), "{local:?} {packet:?}");
        }
    }
    let closed = filters(Local::Blocked);
    for to in ["192.168.1.2", "10.1.2.3", "fe80::7", "224.0.0.251"] {
        let packet = if to.contains(':') { V6 } else { SYN };
        for packet in
            [Packet { remote: (to, 445), ..packet }, Packet { remote: (to, 445), ..packet }.inbound()]
        {
            assert!(!passes(&closed, packet), "{packet:?}");
        }
        let forwarded = Packet { remote: (to, 445), forwarded: Some((TUNNEL, ETHERNET)), ..packet };
        assert!(!passes(&closed, forwarded), "{to}");
    }
}

#[test]
fn local_networks_pass_but_for_dns() {
    let local = filters(allowed(&["192.168.1.1", "9.9.9.9", "fd00::53"]));
    let nets = ["10.1.2.3", "172.31.0.1", "192.168.1.2", "169.254.7.7", "224.0.0.251", "239.1.1.1"];
    for to in nets.into_iter().chain(["255.255.255.255", "fd00::7", "fe80::7", "ff02::fb", "ff05::2"]) {
        let base = if to.contains(':') { V6 } else { SYN };
        for protocol in [TCP, UDP] {
            let to = |port| Packet { protocol, remote: (to, port), ..base };
            for packet in [to(445), to(445).inbound()] {
                assert!(passes(&local, packet), "{packet:?}");
            }
            // A server for local clients answers to any port of theirs.
            assert!(passes(&local, Packet { local: (base.local.0, 53), ..to(50_000) }.inbound()));
            for packet in [to(53), to(853), to(53).inbound(), to(853).inbound()] {
                assert!(!passes(&local, packet), "{packet:?}");
            }
            let forwarded = |from, to_interface| Packet { forwarded: Some((from, to_interface)), ..to(53) };
            assert!(passes(&local, forwarded(TUNNEL, ETHERNET)), "answers out of the tunnel");
            assert!(
                !passes(&local, forwarded(ETHERNET + 1, ETHERNET)),
                "a client of this machine could ask for names"
            );
        }
    }
    for packet in [
        Packet { remote: ("192.168.1.1", 53), ..DATAGRAM },
        Packet { remote: ("192.168.1.1", 853), ..SYN },
        Packet { remote: ("fd00::53", 53), ..V6 },
    ] {
        assert!(passes(&local, packet), "{packet:?}");
    }
    for packet in [Packet { remote: ("9.9.9.9", 53), ..DATAGRAM }, Packet { remote: ("fd00::54", 53), ..V6 }]
    {
        assert!(!passes(&local, packet), "{packet:?}");
    }
    assert!(passes(&local, icmp(ICMP, 8, 0, "192.168.1.2")));
}
