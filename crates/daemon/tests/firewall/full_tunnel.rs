//! The tables that go with a default route through the tunnel.

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, UdpSocket};
use std::num::NonZeroU32;

use weft_host::firewall::{self, Family, FullTunnel, Rules};
use weft_lab::{PATIENCE, wait_until_ok};

use crate::attempts::Attempt;
use crate::world::{INNER, MARK, NAME, Ports, World};

fn full_tunnel(ipv4: bool, ipv6: bool) -> Rules {
    let addresses = INNER.map(|net| net.split_once('/').unwrap().0.parse().unwrap()).to_vec();
    let mark = NonZeroU32::new(MARK).unwrap();
    Rules {
        full_tunnel: Some(FullTunnel { mark, addresses, ipv4, ipv6 }),
        ..Rules::none(NAME.parse().unwrap())
    }
}

/// Where a datagram comes from that is for one of the tunnel's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    Internet,
    Tunnel,
    Itself,
}

/// From where datagrams to an address of the tunnel are heard.
fn heard_from(world: &mut World, address: &str) -> BTreeSet<From> {
    let socket = world.machine.run(|| UdpSocket::bind((address, 0))).unwrap();
    let to = socket.local_addr().unwrap();
    // The last is always heard, and then the others are not under way any more.
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let send = |from: &weft_lab::Namespace, word: &[u8]| {
        from.run(|| {
            UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap().send_to(word, to)
        })
        .unwrap();
    };
    send(&world.internet, b"internet");
    let Ports { wan, internet, .. } = &mut world.ports;
    let _ = wan.take(internet);
    if let (Some(tun), std::net::SocketAddr::V4(to)) = (&world.tun, to) {
        tun.write_udp(SocketAddrV4::new("10.77.0.9".parse().unwrap(), 7), to);
    }
    send(&world.machine, b"itself");
    let mut heard = BTreeSet::new();
    loop {
        let mut word = [0; 16];
        match socket.recv(&mut word).unwrap() {
            0 => heard.insert(From::Tunnel),
            8 => heard.insert(From::Internet),
            _ => {
                heard.insert(From::Itself);
                return heard;
            }
        };
    }
}

#[test]
fn the_tunnels_addresses_are_reached_through_the_tunnel_only() {
    let Some(mut world) = World::new() else { return };
    let internet = world.internet.clone();
    let ip = |arguments: &[&str]| {
        assert!(internet.command("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
    };
    // A host on the same link that guesses the addresses.
    ip(&["route", "add", "10.77.0.0/24", "via", "198.51.100.2"]);
    ip(&["route", "add", "fd77::/64", "via", "2001:db8:1::2"]);
    let everywhere = BTreeSet::from([From::Internet, From::Tunnel, From::Itself]);
    assert_eq!(heard_from(&mut world, "10.77.0.1"), everywhere);
    world.apply(&full_tunnel(true, false));
    assert_eq!(heard_from(&mut world, "10.77.0.1"), [From::Tunnel, From::Itself].into());
    // Other addresses are not affected.
    assert_eq!(heard_from(&mut world, "198.51.100.2"), everywhere);
    // Without a default route of IPv6 its addresses are as they were.
    assert_eq!(heard_from(&mut world, "fd77::1"), [From::Internet, From::Itself].into());
    world.apply(&full_tunnel(true, true));
    assert_eq!(heard_from(&mut world, "fd77::1"), [From::Itself].into());
    world.apply(&full_tunnel(false, true));
    assert_eq!(heard_from(&mut world, "10.77.0.1"), everywhere);
}

#[test]
fn answers_to_the_tunnel_have_its_mark() {
    let Some(world) = World::new() else { return };
    world.nft(&["add table inet seen; \
         add chain inet seen input { type filter hook prerouting priority 0; }; \
         add rule inet seen input meta mark 0xca6c udp sport 51820 counter comment \"own\"; \
         add rule inet seen input meta mark 0 udp sport 51820 counter comment \"other\""]);
    let counts = || {
        let text = world.nft(&["list", "table", "inet", "seen"]);
        let count = |comment: &str| -> u32 {
            let line = text.lines().find(|line| line.contains(comment)).unwrap();
            line.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse().unwrap()
        };
        (count("\"own\""), count("\"other\""))
    };
    let ask = |far: &UdpSocket, router: &str, mark: u32| {
        let port = 40_000 + u16::try_from(mark & 1).unwrap();
        let address = far.local_addr().unwrap().ip().to_string();
        Attempt::udp(&address, 51820).source_port(port).mark(mark).make(&world.machine);
        let (_, from) = far.recv_from(&mut [0; 16]).unwrap();
        far.send_to(b"answer", from).unwrap();
        world.ports.wan.wait_for(&format!("udp {router} {port}"));
    };
    for (address, router) in [("198.51.100.1", "198.51.100.2"), ("2001:db8:1::1", "2001:db8:1::2")] {
        let far = world.internet.bind_udp((address, 51820));
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let before = counts();
        ask(&far, router, MARK);
        wait_for_count(&counts, (before.0, before.1 + 1));
        world.apply(&full_tunnel(true, true));
        ask(&far, router, MARK);
        ask(&far, router, 1);
        wait_for_count(&counts, (before.0 + 1, before.1 + 2));
        world.machine.run(|| firewall::remove(&NAME.parse().unwrap())).unwrap();
    }
}

/// The counters are right a moment after the packet was seen.
#[track_caller]
fn wait_for_count(counts: &impl Fn() -> (u32, u32), expected: (u32, u32)) {
    wait_until_ok(|| match counts() {
        now if now == expected => Ok(()),
        now => Err(format!("{now:?} instead of {expected:?}")),
    });
}

#[test]
fn the_tables_are_those_of_wg_quick_and_of_the_families_that_need_one() {
    let Some(world) = World::without_tunnel() else { return };
    let families = |rules: &Rules| {
        world.apply(rules);
        let present = world.machine.run(|| firewall::present(&rules.interface)).unwrap();
        assert!(present.tables.iter().all(|table| table.name == "wg-quick-weft0"), "{present:?}");
        present.tables.iter().map(|table| table.family).collect::<Vec<_>>()
    };
    assert_eq!(families(&full_tunnel(true, false)), [Family::Ip]);
    assert_eq!(families(&full_tunnel(true, true)), [Family::Ip, Family::Ip6]);
    assert_eq!(families(&full_tunnel(false, true)), [Family::Ip6]);
    assert_eq!(families(&full_tunnel(false, false)), []);
}
