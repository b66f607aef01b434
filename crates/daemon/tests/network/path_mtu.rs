//! A link on the way that carries less than the others.
//!
//! ```text
//!   client  wan ─── 1500 ─── router ─── 1300 ─── wan  server
//!        10.91.1.2                            10.91.2.2
//! ```
//!
//! The MTU inside is configured as if all were 1500. So the client has to learn from the router what goes through, and
//! the server from its own interface.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use weft::up::Options;
use weft_lab::routed::{End, OUTER, Routed};
use weft_lab::{self as lab, Namespace, link};
use weft_udp::PathMtu;

use crate::conversation::{Conversation, MIB};
use crate::waiting::until;
use crate::weft::{CLIENT, Pair, SERVER, inner_v4, inner_v6, options};

const SMALL: u32 = 1300;
/// What goes around an inner packet, IPv4 or IPv6 outside.
const AROUND: [u16; 2] = [20 + 8 + 32, 40 + 8 + 32];

fn lab() -> Routed {
    lab_with(SMALL)
}

fn lab_with(mtu: u32) -> Routed {
    let lab = Routed::new(1500).unwrap();
    link::set_mtu(&lab.router, "to-server", mtu).unwrap();
    link::set_mtu(&lab.server, OUTER, mtu).unwrap();
    lab
}

fn server_at(is_v6: bool) -> IpAddr {
    if is_v6 { Routed::v6(End::Server, 2) } else { Routed::v4(End::Server, 2) }
}

fn start(lab: &Routed, is_v6: bool, path_mtu: PathMtu) -> Pair {
    let options = Options { path_mtu, ..options() };
    Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(1420), &options)
}

/// A UDP socket whose packets are not to be fragmented, connected to an address.
fn unfragmented(namespace: &Namespace, own: IpAddr, other: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind((own, 0))).unwrap();
    let (level, name, value) = if own.is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    };
    // SAFETY: the option's value is one int, which lives until after the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as u32,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    socket.connect(other).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// What the kernel knows of the path of a connected socket.
fn known_mtu(socket: &UdpSocket) -> i32 {
    let (level, name) = if socket.local_addr().unwrap().is_ipv6() {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    let (mut value, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes to `value`, and both live until after the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    value
}

#[test]
fn with_discovery_a_sender_is_told_what_the_path_carries() {
    if !lab::tun_permitted("with_discovery_a_sender_is_told_what_the_path_carries") {
        return;
    }
    for is_v6 in [false, true] {
        let lab = lab();
        let pair = start(&lab, is_v6, PathMtu::On);
        let limit = SMALL as u16 - AROUND[usize::from(is_v6)];
        // IPv4 inside: the limit of IPv6 cannot be less than 1280.
        let sink = lab.server.run(|| UdpSocket::bind((inner_v4(SERVER), 0))).unwrap();
        let sender = unfragmented(&lab.client, inner_v4(CLIENT), sink.local_addr().unwrap());
        let mut large = vec![7; 1420 - 28];
        until("the sender is told", || match sender.send(&large) {
            Ok(_) => false,
            Err(error) => error.raw_os_error() == Some(libc::EMSGSIZE),
        });
        assert_eq!(known_mtu(&sender), i32::from(limit));
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
    if !lab::tun_permitted("with_discovery_tcp_goes_through_a_small_link_in_both_directions") {
        return;
    }
    for is_v6 in [false, true] {
        let lab = lab();
        let pair = start(&lab, is_v6, PathMtu::On);
        for inner in [inner_v4, inner_v6] {
            let conversation =
                Conversation::start((&lab.client, inner(CLIENT)), (&lab.server, inner(SERVER)));
            conversation.wait_for_more(4 * MIB);
            conversation.finish();
        }
        let limit = SMALL as u16 - AROUND[usize::from(is_v6)];
        for end in [&pair.client, &pair.server] {
            assert_eq!(end.peer().path_limit, Some(limit));
        }
    }
}

#[test]
fn without_discovery_what_is_too_long_arrives_in_pieces() {
    if !lab::tun_permitted("without_discovery_what_is_too_long_arrives_in_pieces") {
        return;
    }
    for is_v6 in [false, true] {
        let lab = lab();
        let pair = start(&lab, is_v6, PathMtu::Off);
        let conversation =
            Conversation::start((&lab.client, inner_v4(CLIENT)), (&lab.server, inner_v4(SERVER)));
        conversation.wait_for_more(4 * MIB);
        conversation.finish();
        let sink = lab.server.run(|| UdpSocket::bind((inner_v4(SERVER), 0))).unwrap();
        sink.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
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
    let test = "a_black_hole_swallows_what_is_too_long_and_nothing_else_until_the_mtu_is_smaller";
    if !lab::tun_permitted(test) {
        return;
    }
    for is_v6 in [false, true] {
        // IPv6 inside needs 1280 of it.
        let small = 1400;
        let lab = lab_with(small);
        if !silence(&lab.router) {
            return lab::not_run(test, "nft does not work");
        }
        // A router on the same machine gets a batch in one piece, and would throw away the short with the long.
        let options = Options { path_mtu: PathMtu::On, offload: false, ..options() };
        let pair = Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(1420), &options);
        let sink = lab.server.run(|| UdpSocket::bind((inner_v4(SERVER), 0))).unwrap();
        sink.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
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
            "nobody has said anything"
        );
        drop(pair);
        // What docs/MTU.md advises: an MTU that fits, on both ends.
        let options = Options { offload: true, ..options };
        let mtu = small as u16 - AROUND[usize::from(is_v6)];
        let _pair = Pair::start(&lab.client, &lab.server, server_at(is_v6), Some(mtu), &options);
        let conversation =
            Conversation::start((&lab.client, inner_v4(CLIENT)), (&lab.server, inner_v4(SERVER)));
        conversation.wait_for_more(4 * MIB);
        conversation.finish();
    }
}

/// IPv4 and IPv6 fragments that the namespace made.
fn fragments_made(namespace: &Namespace) -> u64 {
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
