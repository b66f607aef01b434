//! Nothing gets past the kill switch, with a tunnel and without one.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use weft_host::firewall::{self, Local, Rules};
use weft_lab::{PATIENCE, link};

use crate::attempts::Attempt;
use crate::scenario::{
    all, allowed, allowed_for_clients, attempts, everything, forbidden, forbidden_for_clients, local,
    local_dns, out_of_the_tunnel,
};
use crate::world::{MARK, NAME, World, lines, marked};

fn allow_local(dns: &[&str]) -> Local {
    Local::Allowed { dns: dns.iter().map(|server| server.parse().unwrap()).collect() }
}

/// Packets that come out of the tunnel, by their destination.
const ANSWER: &str = "client: udp 192.168.93.2 4100";

/// What arrives in any case of what [`everything`] tries.
fn always() -> BTreeSet<String> {
    let mut lines = all(&[allowed(), allowed_for_clients()]);
    lines.extend(["tunnel: udp 10.77.0.40 7", ANSWER, "loopback"].map(str::to_owned));
    lines
}

#[test]
fn without_a_kill_switch_everything_arrives() {
    let Some(mut world) = World::new() else { return };
    // Otherwise the other tests see nothing because there is nothing to see.
    let mut expected = always();
    expected.extend(all(&[forbidden(), local(), local_dns(), forbidden_for_clients()]));
    expected.extend(["client: udp 192.168.93.2 4101", "internet: udp 203.0.113.42 4102"].map(str::to_owned));
    let answers = ["internet: udp 198.51.100.1 4202", "internet: udp 198.51.100.1 4203"];
    expected.extend(answers.map(str::to_owned));
    assert_eq!(everything(&mut world), expected);
}

#[test]
fn nothing_leaves_past_the_tunnel() {
    let Some(mut world) = World::new() else { return };
    world.apply(&marked(Local::Blocked));
    assert_eq!(everything(&mut world), always());
}

#[test]
fn local_networks_can_be_spared() {
    let Some(mut world) = World::new() else { return };
    world.apply(&marked(allow_local(&[])));
    let mut expected = always();
    expected.extend(all(&[local()]));
    // What goes to all on the link is not for the world.
    let to_the_link = ["icmpv6 ff02::14 type 128", "udp ff05::1:3 547", "udp ff05::1:3 548"];
    expected.extend(to_the_link.map(|packet| format!("internet: {packet}")));
    // A peer may talk to a client then, but not to the world.
    expected.insert("client: udp 192.168.93.2 4101".to_owned());
    assert_eq!(everything(&mut world), expected);
}

#[test]
fn local_name_servers_are_asked_only_if_the_configuration_names_them() {
    let Some(mut world) = World::new() else { return };
    let cases = attempts(&[local_dns(), vec![(Attempt::udp("203.0.113.53", 53), "")]]);
    world.apply(&marked(allow_local(&["fd93::2", "203.0.113.53"])));
    // The one outside can be reached through the tunnel only, by any name.
    assert_eq!(world.seen(&cases, &[]), lines(["client: udp fd93::2 53"]));
    world.apply(&marked(allow_local(&["192.168.93.2"])));
    let mut expected = all(&[local_dns()]);
    expected.retain(|line| line.contains(" 192.168.93.2 "));
    assert_eq!(world.seen(&cases, &[]), expected);
}

#[test]
fn nothing_leaves_when_the_tunnel_is_gone() {
    let Some(mut world) = World::new() else { return };
    world.apply(&marked(Local::Blocked));
    let before = everything(&mut world);
    assert_eq!(before, always());
    // As after a crash: the device goes with its descriptor.
    world.tun = None;
    let tunnel = |line: &String| line.starts_with("tunnel:") || line == ANSWER;
    let without: BTreeSet<String> = before.into_iter().filter(|line| !tunnel(line)).collect();
    assert_eq!(everything(&mut world), without);
}

#[test]
fn nothing_leaves_before_there_is_a_tunnel() {
    let Some(mut world) = World::without_tunnel() else { return };
    world.apply(&marked(Local::Blocked));
    let machine = attempts(&[forbidden(), local(), local_dns()]);
    let client = attempts(&[forbidden_for_clients(), allowed_for_clients()]);
    assert_eq!(world.seen(&machine, &client), BTreeSet::new());
    // It is let through by its name as soon as it is there.
    world.tun = Some(crate::tun::Tun::make(&world.machine, NAME, &crate::world::INNER));
    assert!(out_of_the_tunnel(&mut world).contains(ANSWER));
}

#[test]
fn what_is_rerouted_past_the_tunnel_does_not_leave() {
    let Some(mut world) = World::new() else { return };
    // Everything goes into the tunnel, but rules of another program put a mark on some of it and route that
    // elsewhere: the hook for output sees the device of the first route.
    world.ip(&["route", "add", "203.0.113.0/24", "dev", NAME]);
    world.ip(&["rule", "add", "fwmark", "0x77", "table", "77"]);
    world.ip(&["route", "add", "default", "via", "198.51.100.1", "table", "77"]);
    world.nft(&["add table ip others; \
         add chain ip others reroute { type route hook output priority mangle; }; \
         add rule ip others reroute udp dport 5000 meta mark set 0x77; \
         add rule ip others reroute tcp dport 5001 meta mark set 0x77"]);
    let around = [Attempt::udp("203.0.113.1", 5000), Attempt::tcp("203.0.113.1", 5001)];
    let arrived = lines(["internet: udp 203.0.113.1 5000", "internet: tcp 203.0.113.1 5001"]);
    assert_eq!(world.seen(&around, &[]), arrived);
    world.apply(&marked(Local::Blocked));
    assert_eq!(world.seen(&around, &[]), BTreeSet::new());
    let through = [Attempt::udp("203.0.113.1", 5002)];
    assert_eq!(world.seen(&through, &[]), lines(["tunnel: udp 203.0.113.1 5002"]));
}

#[test]
fn the_tunnel_finds_its_next_hop_over_ipv6() {
    let Some(world) = World::without_tunnel() else { return };
    world.apply(&marked(Local::Blocked));
    world.ip(&["-6", "neigh", "flush", "dev", "wan"]);
    Attempt::udp("2001:db8:ffff::20", 51820).mark(MARK).make(&world.machine);
    world.ports.internet.wait_for("udp 2001:db8:ffff::20 51820");
    // And the router finds the machine.
    let flush = world.internet.command("ip").args(["-6", "neigh", "flush", "dev", "eth0"]).status().unwrap();
    assert!(flush.success());
    Attempt::udp("2001:db8:1::2", 51820).make(&world.internet);
    world.ports.wan.wait_for("udp 2001:db8:1::2 51820");
}

#[test]
fn programs_are_told_at_once_and_what_was_held_back_is_counted() {
    let Some(world) = World::without_tunnel() else { return };
    let rules = marked(Local::Blocked);
    world.apply(&rules);
    let blocked = || world.machine.run(|| firewall::present(&rules.interface)).unwrap().blocked.unwrap();
    let before = blocked();
    for address in ["203.0.113.1", "2001:db8:ffff::1"] {
        let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 443);
        let patience = Duration::from_secs(60);
        let start = Instant::now();
        let error = world.machine.run(|| TcpStream::connect_timeout(&address, patience)).unwrap_err();
        // Unreachable or forbidden, and not a time-out.
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut, "{address}: {:?}", start.elapsed());
    }
    // Reports of listeners may be among them.
    assert!(blocked() >= before + 2);
}

#[test]
fn clients_are_told_what_the_tunnel_takes() {
    let Some(world) = World::new() else { return };
    world.apply(&marked(Local::Blocked));
    link::set_mtu(&world.machine, NAME, 1300).unwrap();
    for (address, description) in
        [("10.77.0.50", "icmp 192.168.93.2 type 3"), ("fd77::50", "icmpv6 fd93::2 type 2")]
    {
        world.client.run(|| {
            let to = SocketAddr::new(address.parse().unwrap(), 7);
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let socket =
                socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::DGRAM, None).unwrap();
            socket.bind(&SocketAddr::new(any, 0).into()).unwrap();
            socket.send_to(&[0; 1400], &to.into()).unwrap();
        });
        world.ports.client.wait_for(description);
    }
}

#[test]
fn a_connection_of_a_peer_to_the_world_ends_with_the_switch() {
    let Some(mut world) = World::new() else { return };
    // Connections are followed from before the switch on.
    world.nft(&["add table inet others; \
         add chain inet others forward { type filter hook forward priority 0; }; \
         add rule inet others forward ct state new counter"]);
    link::add_address(&world.internet, "eth0", "203.0.113.42/32".parse().unwrap()).unwrap();
    link::add_route(&world.internet, "10.77.0.0/24".parse().unwrap(), "198.51.100.2".parse().unwrap())
        .unwrap();
    let far = world.internet.run(|| UdpSocket::bind("203.0.113.42:4102")).unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let speak = |world: &World| {
        let [from, to] = ["10.77.0.42:7", "203.0.113.42:4102"].map(|text| text.parse().unwrap());
        world.tun.as_ref().unwrap().write_udp(from, to);
    };
    speak(&world);
    let (_, from) = far.recv_from(&mut [0; 16]).unwrap();
    far.send_to(b"answer", from).unwrap();
    world.tun.as_ref().unwrap().wait_for("udp 10.77.0.42 7");
    let said = lines(["internet: udp 203.0.113.42 4102"]);
    assert_eq!(world.arrived(), said);
    world.apply(&marked(Local::Blocked));
    speak(&world);
    assert_eq!(world.arrived(), BTreeSet::new());
}

#[test]
fn no_rules_let_everything_through() {
    let Some(mut world) = World::new() else { return };
    world.apply(&marked(Local::Blocked));
    world.apply(&Rules::none(NAME.parse().unwrap()));
    let cases = [forbidden()];
    assert_eq!(world.seen(&attempts(&cases), &[]), all(&cases));
}
