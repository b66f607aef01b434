//! ICMP messages about the MTU of a path that no router has sent. The kernel believes them: they name no port
//! and no secret, and come from any address.
//!
//! ```text
//!   client  wan ─── 1500 ─── router ─── 1500 ─── wan  server
//!                    ▲
//!                    └ forges "fragmentation needed, MTU 68" and "packet too big, MTU 1280"
//! ```

use std::net::{IpAddr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};
use weft::up::Options;
use weft_host::network::NetworkChange;
use weft_lab::routed::{End, Routed};
use weft_lab::until;
use weft_udp::PathMtu;

use crate::device_mtu::mtu_of;
use crate::path_mtu::{fragments_made, known_mtu, server_at, sink, unfragmented};
use crate::weft::{CLIENT, Pair, inner_v4, options, routed};

fn client_at(is_v6: bool) -> IpAddr {
    if is_v6 { Routed::v6(End::Client, 2) } else { Routed::v4(End::Client, 2) }
}

/// Tells the client that the path to the server carries as little as a message can say, and returns what its
/// kernel makes of that.
fn forge(lab: &Routed, is_v6: bool) -> u32 {
    let (client, server) = (client_at(is_v6), server_at(is_v6));
    let (domain, protocol) =
        if is_v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
    let message = if is_v6 { packet_too_big(client, server) } else { fragmentation_needed(client, server) };
    let stranger = lab.router.run(|| Socket::new(domain, Type::RAW, Some(protocol))).unwrap();
    let asks = lab.client.run(|| UdpSocket::bind((client, 0))).unwrap();
    until("the client believes it", || {
        stranger.send_to(&message, &SocketAddr::new(client, 0).into()).unwrap();
        asks.connect((server, 9)).unwrap();
        known_mtu(&asks) < 1400
    });
    known_mtu(&asks)
}

/// The message, which quotes an answer to an echo request of the destination.
fn fragmentation_needed(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0, 0, 68];
    message.extend([0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 64, 1, 0, 0]);
    for address in [source, destination] {
        let IpAddr::V4(address) = address else { unreachable!("IPv4") };
        message.extend(address.octets());
    }
    message.extend([0; 8]);
    let checksum = !weft_checksum::fold(weft_checksum::add(0, &message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// The same for IPv6, where the kernel computes the checksum.
fn packet_too_big(source: IpAddr, destination: IpAddr) -> Vec<u8> {
    let mut message = vec![2, 0, 0, 0];
    message.extend(1280_u32.to_be_bytes());
    message.extend([0x60, 0, 0, 0, 5, 0xdc, 58, 64]);
    for address in [source, destination] {
        let IpAddr::V6(address) = address else { unreachable!("IPv6") };
        message.extend(address.octets());
    }
    message.extend([129, 0, 0, 0, 0, 0, 0, 0]);
    message
}

#[test]
fn a_forged_message_lowers_the_mtu_of_no_device() {
    for is_v6 in [false, true] {
        let Some(lab) = routed() else { return };
        let start = || Pair::start(&lab.client, &lab.server, server_at(is_v6), None, &options());
        let pair = start();
        let learnt = forge(&lab, is_v6);
        assert!(learnt <= 1280, "{learnt}");
        let change = NetworkChange { addresses: true, routes: true, links: true, ..NetworkChange::default() };
        lab.client.run(|| pair.client.react(&change));
        assert_eq!(mtu_of(&lab.client), 1420, "a change of the network, IPv6: {is_v6}");
        drop(pair);
        let _pair = start();
        assert_eq!(mtu_of(&lab.client), 1420, "a start, IPv6: {is_v6}");
        assert_eq!(forge(&lab, is_v6), learnt, "the kernel knows it still");
    }
}

#[test]
fn a_forged_message_makes_no_datagram_shorter_and_no_sender_is_told() {
    for (is_v6, path_mtu) in [false, true]
        .into_iter()
        .flat_map(|is_v6| [PathMtu::Off, PathMtu::On].map(|path_mtu| (is_v6, path_mtu)))
    {
        let Some(lab) = routed() else { return };
        let options = Options { path_mtu, ..options() };
        let pair = Pair::start(&lab.client, &lab.server, server_at(is_v6), None, &options);
        forge(&lab, is_v6);
        let sink = sink(&lab);
        let sender = unfragmented(&lab.client, inner_v4(CLIENT), sink.local_addr().unwrap());
        let large = vec![7; 1420 - 28];
        // What weft is not sure of goes in fragments over IPv6, and arrives as well.
        until("datagrams are sent in one piece", || {
            let before = fragments_made(&lab.client);
            sender.send(&large).unwrap();
            assert_eq!(sink.recv(&mut [0; 2000]).unwrap(), large.len());
            fragments_made(&lab.client) == before
        });
        assert_eq!(known_mtu(&sender), 1420);
        assert_eq!((pair.client.peer().path_limit, pair.client.snapshot().tunnel.icmp_sent), (None, 0));
        assert!(forge(&lab, is_v6) <= 1280, "the kernel knows it still");
    }
}
