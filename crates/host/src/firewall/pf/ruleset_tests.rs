//! The rules as text, and what they let out, by an evaluation of that text.

use std::net::IpAddr;

use ipnet::IpNet;

use super::*;

fn rules(local: Local, endpoints: &[&str]) -> Rules {
    let own = OwnPackets::new(0, endpoints.iter().map(|endpoint| endpoint.parse().unwrap()));
    Rules { kill_switch: Some(KillSwitch { own, local }), ..Rules::none("utun7".parse().unwrap()) }
}

fn allowed(dns: &[&str]) -> Local {
    Local::Allowed { dns: dns.iter().map(|server| server.parse().unwrap()).collect() }
}

const ENDPOINTS: [&str; 2] = ["192.0.2.1:51820", "[2001:db8::1]:51820"];

#[test]
fn the_rules_are_those_that_the_documentation_links_to() {
    let rules =
        Rules { mss_clamp: true, mtu: Some(1420), ..rules(allowed(&["192.168.1.1", "9.9.9.9"]), &ENDPOINTS) };
    let text = text(Flavor::MacOs, &rules, Some(17_296_549_721_543_521));
    assert_eq!(text, include_str!("rules.pf"));
}

#[test]
fn each_wish_has_its_rules_and_no_others() {
    let on = text(Flavor::FreeBsd, &rules(Local::Blocked, &[]), None);
    let expected = "\
# loopback and tunnel
pass out quick on \"lo0\" all no state
pass out quick on \"utun7\" all flags S/SA keep state (if-bound)
pass out quick on \"utun7\" all no state
# DHCP
pass out quick inet proto udp from any port 68 to { 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 169.254.0.0/16, 255.255.255.255/32 } port 67 keep state (if-bound)
# DHCPv6
pass out quick inet6 proto udp from fe80::/10 port 546 to { ff02::1:2, ff05::1:3 } port 547 keep state (if-bound)
# neighbour discovery
pass out quick inet6 proto ipv6-icmp all icmp6-type { routersol, routeradv, neighbrsol, neighbradv } no state
# multicast listeners; 143: version 2
pass out quick inet6 proto ipv6-icmp from any to ff02::/16 icmp6-type { listqry, listenrep, listendone, 143 } no state \
allow-opts
# path MTU
pass out quick inet proto icmp all icmp-type unreach code needfrag no state
pass out quick inet6 proto ipv6-icmp all icmp6-type toobig no state
# blocked
block return-icmp(filter-prohib, admin-unr) out quick all label \"weft-blocked\"
";
    assert_eq!(on, expected);
    let clamp = Rules { mss_clamp: true, mtu: Some(1280), ..Rules::none("tun7".parse().unwrap()) };
    assert_eq!(
        text(Flavor::FreeBsd, &clamp, None),
        "# MSS\n\
         match on \"tun7\" inet proto tcp all scrub (max-mss 1240)\n\
         match on \"tun7\" inet6 proto tcp all scrub (max-mss 1220)\n"
    );
    assert_eq!(
        text(Flavor::MacOs, &clamp, Some(7)),
        "# MSS\n\
         scrub on \"tun7\" inet proto tcp all max-mss 1240\n\
         scrub on \"tun7\" inet6 proto tcp all max-mss 1220\n\
         # keeps pf enabled\n\
         block drop out on \"tun7\" proto 255 all label \"weft-token-7\"\n"
    );
    assert!(!has_any(&Rules::none("tun7".parse().unwrap())));
    assert!(has_any(&clamp) && has_any(&rules(Local::Blocked, &[])));
}

#[test]
fn every_endpoint_has_its_own_rule() {
    let endpoints: Vec<String> = (1..=300).map(|port| format!("192.0.2.{}:{port}", port % 250)).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let text = text(Flavor::MacOs, &rules(Local::Blocked, &endpoints), None);
    assert_eq!(text.matches("proto udp from any to 192.0.2.").count(), 300);
    assert!(text.contains("inet proto udp from any to 192.0.2.51 port 51 keep"), "{text}");
    assert!(text.contains("inet proto udp from any to 192.0.2.50 port 300 keep"), "{text}");
}

/// A packet that leaves.
#[derive(Clone, Copy, Debug)]
struct Packet {
    on: &'static str,
    proto: &'static str,
    /// Whether it is the first segment of a connection, for TCP.
    is_syn: bool,
    from: (&'static str, u16),
    to: (&'static str, u16),
    icmp: &'static str,
}

const SYN: Packet = Packet {
    on: "en0",
    proto: "tcp",
    is_syn: true,
    from: ("192.168.1.9", 50_000),
    to: ("1.1.1.1", 443),
    icmp: "",
};
const UDP: Packet = Packet { proto: "udp", ..SYN };
const V6: Packet = Packet { from: ("fe80::9", 50_000), to: ("2001:db8::9", 443), ..UDP };

fn icmp6(icmp: &'static str, to: &'static str) -> Packet {
    Packet { proto: "ipv6-icmp", to: (to, 0), icmp, ..V6 }
}

/// Reports whether the rules let a packet out: the first one that matches decides, since all are `quick`.
fn lets_out(text: &str, packet: Packet) -> bool {
    for rule in text.lines().filter(|line| line.starts_with("pass out quick") || line.contains(" out quick"))
    {
        if matches(rule, packet) {
            return rule.starts_with("pass");
        }
    }
    true
}

fn matches(rule: &str, packet: Packet) -> bool {
    let rule = rule.split_once(" out quick").unwrap().1.replace(['{', '}', ',', '"'], " ");
    let words: Vec<&str> = rule.split_whitespace().collect();
    // What stands behind a word, up to the next keyword.
    let keywords = "on inet inet6 proto all from port to icmp-type icmp6-type flags keep no label allow-opts";
    let keywords: Vec<&str> = keywords.split(' ').collect();
    let behind =
        |place: usize| words[place + 1..].iter().copied().take_while(|word| !keywords.contains(word));
    let (from, to): (IpAddr, IpAddr) = (packet.from.0.parse().unwrap(), packet.to.0.parse().unwrap());
    let is_in = |net: &str, address: IpAddr| {
        net == "any"
            || net.parse::<IpNet>().map_or_else(|_| net.parse() == Ok(address), |net| net.contains(&address))
    };
    let mut is_destination = false;
    words.iter().enumerate().all(|(place, word)| match *word {
        "on" => behind(place).any(|name| name == packet.on),
        "inet" => to.is_ipv4(),
        "inet6" => to.is_ipv6(),
        "proto" => behind(place).any(|proto| proto == packet.proto),
        "from" => behind(place).any(|net| is_in(net, from)),
        "to" => {
            is_destination = true;
            behind(place).any(|net| is_in(net, to))
        }
        "port" => {
            let port = if is_destination { packet.to.1 } else { packet.from.1 };
            behind(place).any(|wanted| wanted.parse() == Ok(port))
        }
        "icmp-type" | "icmp6-type" => behind(place).any(|kind| kind == packet.icmp),
        "flags" => packet.proto != "tcp" || packet.is_syn,
        _ => true,
    })
}

#[test]
fn nothing_leaves_but_through_the_tunnel() {
    let on = text(Flavor::MacOs, &rules(Local::Blocked, &ENDPOINTS), Some(7));
    let let_out = [
        Packet { on: "utun7", ..SYN },
        Packet { on: "utun7", is_syn: false, ..SYN },
        Packet { on: "utun7", ..V6 },
        Packet { on: "lo0", to: ("127.0.0.1", 80), ..SYN },
        Packet { to: ("192.0.2.1", 51_820), ..UDP },
        Packet { to: ("2001:db8::1", 51_820), ..V6 },
        Packet { from: ("0.0.0.0", 68), to: ("255.255.255.255", 67), ..UDP },
        Packet { from: ("192.168.1.9", 68), to: ("192.168.1.1", 67), ..UDP },
        Packet { from: ("fe80::9", 546), to: ("ff02::1:2", 547), ..V6 },
        icmp6("neighbrsol", "ff02::1:ff00:9"),
        icmp6("neighbradv", "2001:db8::9"),
        icmp6("143", "ff02::16"),
        Packet { proto: "icmp", icmp: "needfrag", ..SYN },
    ];
    for packet in let_out {
        assert!(lets_out(&on, packet), "{packet:?}");
    }
    let held_back = [
        SYN,
        UDP,
        Packet { from: ("192.168.1.9", 68), to: ("203.0.113.1", 67), ..UDP },
        V6,
        Packet { is_syn: false, ..SYN },
        Packet { on: "utun70", ..SYN },
        Packet { on: "utun", ..UDP },
        Packet { to: ("192.0.2.1", 51_821), ..UDP },
        Packet { to: ("192.0.2.2", 51_820), ..UDP },
        Packet { to: ("192.0.2.1", 51_820), ..SYN },
        Packet { from: ("192.168.1.9", 68), to: ("9.9.9.9", 53), ..UDP },
        Packet { from: ("2001:db8::7", 546), to: ("ff02::1:2", 547), ..V6 },
        Packet { to: ("192.168.1.1", 443), ..SYN },
        Packet { proto: "icmp", icmp: "echoreq", ..SYN },
        icmp6("echoreq", "2001:db8::9"),
        icmp6("listqry", "2001:db8::9"),
        icmp6("redir", "fe80::1"),
    ];
    for packet in held_back {
        assert!(!lets_out(&on, packet), "{packet:?}");
    }
    let no_user = text(Flavor::MacOs, &rules(Local::Blocked, &[]), None);
    assert!(!lets_out(&no_user, Packet { to: ("192.0.2.1", 51_820), ..UDP }));
}

#[test]
fn local_networks_are_let_out_to_but_for_dns() {
    let local = text(Flavor::FreeBsd, &rules(allowed(&["192.168.1.1", "9.9.9.9", "fd00::53"]), &[]), None);
    for to in ["10.1.2.3", "172.31.0.1", "192.168.1.2", "169.254.7.7", "224.0.0.251", "239.1.1.1"] {
        assert!(lets_out(&local, Packet { to: (to, 445), ..SYN }), "{to}");
        assert!(lets_out(&local, Packet { to: (to, 445), is_syn: false, ..SYN }), "{to}");
        for port in [53, 853] {
            assert!(!lets_out(&local, Packet { to: (to, port), ..SYN }), "{to} {port}");
            assert!(!lets_out(&local, Packet { to: (to, port), ..UDP }), "{to} {port}");
        }
    }
    for to in ["fd00::7", "fe80::7", "ff02::fb", "ff05::2"] {
        assert!(lets_out(&local, Packet { to: (to, 445), ..V6 }), "{to}");
        assert!(!lets_out(&local, Packet { to: (to, 53), ..V6 }), "{to}");
    }
    for to in ["192.168.1.1", "fd00::53"] {
        let packet = if to.contains(':') { V6 } else { UDP };
        assert!(lets_out(&local, Packet { to: (to, 53), ..packet }), "{to}");
    }
    // A name server of the configuration that is not in a local network is asked through the tunnel.
    for to in ["9.9.9.9", "1.1.1.1", "100.64.0.1", "172.32.0.1", "193.168.1.1"] {
        assert!(!lets_out(&local, Packet { to: (to, 53), ..UDP }), "{to}");
        assert!(!lets_out(&local, Packet { to: (to, 443), ..UDP }), "{to}");
    }
}

#[test]
fn states_are_of_no_use_on_another_interface() {
    let text = text(Flavor::FreeBsd, &rules(allowed(&["192.168.1.1"]), &ENDPOINTS), None);
    for rule in text.lines().filter(|line| line.starts_with("pass")) {
        assert!(rule.contains(" no state") || rule.contains(" keep state (if-bound)"), "{rule}");
    }
}
