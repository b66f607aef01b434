//! A link on the way that carries less than the others.
//!
//! ```text
//!   client  wan ─── 1500 ─── router ─── 1400 ─── wan  server
//!        10.91.1.2                            10.91.2.2
//! ```
//!
//! The MTU inside is configured as if all were 1500. So the client has to learn from the router what goes
//! through, and the server from its own interface.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use weft::up::Options;
use weft_lab::routed::{End, OUTER, Routed};
use weft_lab::{Namespace, PATIENCE, here, link, until};
use weft_udp::PathMtu;

use crate::conversation::{Conversation, MIB};
use crate::weft::{CLIENT, Pair, SERVER, inner_v4, inner_v6, options, routed};

const SMALL: u32 = 1400;
/// What goes around an inner packet, IPv4 or IPv6 outside.
const AROUND: [u16; 2] = [20 + 8 + 32, 40 + 8 + 32];

/// With this MTU between the router and the server.
fn lab(mtu: u32) -> Option<Routed> {
    let lab = routed()?;
    link::set_mtu(&lab.router, "to-server", mtu).unwrap();
    link::set_mtu(&lab.server, OUTER, mtu).unwrap();
    Some(lab)
}

/// Sends 4 MiB in either direction through the tunnel.
fn exchange(lab: &Routed, inner: fn(u8) -> IpAddr) {
    let conversation = Conversation::start((&lab.client, inner(CLIENT)), (&lab.server, inner(SERVER)));
    conversation.wait_for_more(4 * MIB);
    conversation.finish();
}

/// A socket of the server that waits for datagrams from the tunnel.
pub(crate) fn sink(lab: &Routed) -> UdpSocket {
    let sink = lab.server.run(|| UdpSocket::bind((inner_v4(SERVER), 0))).unwrap();
    sink.set_read_timeout(Some(PATIENCE)).unwrap();
    sink
}

pub(crate) fn server_at(is_v6: bool) -> IpAddr {
    if is_v6 { Routed::v6(End::Server, 2) } else { Routed::v4(End::Server, 2) }
}

fn start(lab: &Routed, is_v6: bool, path_mtu: PathMtu) -> Pair {
    let options = Options { path_mtu, ..options() };
    Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(1420), &options)
}

/// A UDP socket that forbids fragments, connected to an address.
pub(crate) fn unfragmented(namespace: &Namespace, own: IpAddr, other: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((own, 0))).unwrap();
    if own.is_ipv6() {
        sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO).unwrap();
    } else {
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO).unwrap();
    }
    socket.connect(other).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// What the kernel knows of the path of a connected socket.
pub(crate) fn known_mtu(socket: &UdpSocket) -> u32 {
    let mtu = if socket.local_addr().unwrap().is_ipv6() { sockopt::ipv6_mtu } else { sockopt::ip_mtu };
    mtu(socket).unwrap()
}

#[test]
fn with_discovery_a_sender_is_told_what_the_path_carries() {
    for is_v6 in [false, true] {
        let Some(lab) = lab(SMALL) else { return };
        let pair = start(&lab, is_v6, PathMtu::On);
        let limit = SMALL as u16 - AROUND[usize::from(is_v6)];
        // IPv4 inside.
        let sink = sink(&lab);
        let sender = unfragmented(&lab.client, inner_v4(CLIENT), sink.local_addr().unwrap());
        let mut large = vec![7; 1420 - 28];
        until("the sender is told", || match sender.send(&large) {
            Ok(_) => false,
            Err(error) => error.raw_os_error() == Some(libc::EMSGSIZE),
        });
        assert_eq!(known_mtu(&sender), u32::from(limit));
        assert_eq!(pair.client.peer().path_limit, Some(limit));
        assert!(pair.client.snapshot().tunnel.icmp_sent > 0);
        // What it is told goes through, in one piece.
        large.truncate(usize::from(limit) - 28);
        large.fill(8);
        sink.set_nonblocking(true).unwrap();
        let fragments = fragments_made(&lab.client);
        until("what fits arrives", || {
            // An answer to what was sent before may come with it.
            let _ = sender.send(&large);
            let mut received = [0; 2000];
            std::iter::from_fn(|| sink.recv(&mut received).ok()).any(|len| len == large.len())
        });
        assert_eq!(fragments_made(&lab.client), fragments, "outside it is one piece as well");
    }
}

#[test]
fn with_discovery_tcp_goes_through_a_small_link_in_both_directions() {
    for is_v6 in [false, true] {
        let Some(lab) = lab(SMALL) else { return };
        let pair = start(&lab, is_v6, PathMtu::On);
        for inner in [inner_v4, inner_v6] {
            exchange(&lab, inner);
        }
        let limit = SMALL as u16 - AROUND[usize::from(is_v6)];
        for end in [&pair.client, &pair.server] {
            assert_eq!(end.peer().path_limit, Some(limit));
        }
    }
}

#[test]
fn without_discovery_what_is_too_long_arrives_in_pieces() {
    for is_v6 in [false, true] {
        let Some(lab) = lab(SMALL) else { return };
        let pair = start(&lab, is_v6, PathMtu::Off);
        exchange(&lab, inner_v4);
        let sink = sink(&lab);
        let sender = unfragmented(&lab.client, inner_v4(CLIENT), sink.local_addr().unwrap());
        let large = vec![7; 1420 - 28];
        sender.send(&large).unwrap();
        assert_eq!(sink.recv(&mut [0; 2000]).unwrap(), large.len());
        assert_eq!(known_mtu(&sender), 1420);
        for end in [&pair.client, &pair.server] {
            assert_eq!((end.peer().path_limit, end.snapshot().tunnel.icmp_sent), (None, 0));
        }
        // By the router over IPv4, by the sender over IPv6.
        let by = if is_v6 { &lab.client } else { &lab.router };
        assert!(fragments_made(by) > 0);
    }
}

/// Lets the router say nothing any more.
fn silence(router: &Namespace) -> bool {
    let rules = "table inet silent { chain output { type filter hook output priority 0; \
                 icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }";
    let mut nft = router.command("nft");
    nft.arg(rules);
    router.run(|| nft.status()).is_ok_and(|status| status.success())
}

#[test]
fn a_black_hole_swallows_what_is_too_long_and_nothing_else_until_the_mtu_is_smaller() {
    for is_v6 in [false, true] {
        // IPv6 inside needs 1280 of it.
        let small = 1400;
        let Some(lab) = lab(small) else { return };
        if !silence(&lab.router) {
            return here::not_run("nft does not work");
        }
        // A router on the same machine gets a batch in one piece, and would throw away the short with the
        // long.
        let options = Options { path_mtu: PathMtu::On, offload: false, ..options() };
        let pair = Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(1420), &options);
        let sink = sink(&lab);
        let sender = unfragmented(&lab.client, inner_v4(CLIENT), sink.local_addr().unwrap());
        // In the order in which they are sent: handshakes are short, so the tunnel is up.
        for len in [100, 1420 - 28, 101, 1420 - 28, 102] {
            sender.send(&vec![7; len]).unwrap();
        }
        let received = [(); 3].map(|()| sink.recv(&mut [0; 2000]).unwrap());
        assert_eq!(received, [100, 101, 102]);
        assert_eq!(
            (known_mtu(&sender), pair.client.peer().path_limit),
            (1420, None),
            "no message about the size has arrived"
        );
        drop(pair);
        // What docs/MTU.md advises: an MTU that fits, on both ends.
        let options = Options { offload: true, ..options };
        let mtu = small as u16 - AROUND[usize::from(is_v6)];
        let _pair = Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(mtu), &options);
        exchange(&lab, inner_v4);
    }
}

/// IPv4 and IPv6 fragments that the namespace made.
pub(crate) fn fragments_made(namespace: &Namespace) -> u64 {
    let (snmp, snmp6) = namespace.run(|| {
        let read = |name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        (read("snmp"), read("snmp6"))
    });
    let mut ip = snmp.lines().filter_map(|line| line.strip_prefix("Ip: "));
    let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
    let v4 = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "FragCreates").unwrap().1;
    let v6 = snmp6.lines().find_map(|line| line.strip_prefix("Ip6FragCreates")).unwrap().trim();
    v4.parse::<u64>().unwrap() + v6.parse::<u64>().unwrap()
}
