//! The source, the ECN bits, the length and the route of datagrams.

use std::net::{SocketAddrV6, ToSocketAddrs};

use super::*;

#[test]
fn ecn_is_sent_and_reported() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        for address in [V4, V6] {
            for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
                for sent in [&one(), &two()] {
                    let accepted =
                        send(&mut a, Transmit { ecn, ..to(address, b.port(), 32, sent) }).await.unwrap();
                    assert_eq!(accepted.bytes, sent.len());
                    let received = receive(&mut b, sent.len() / 32).await;
                    assert!(received.iter().all(|(meta, _)| meta.ecn == ecn), "{received:?}");
                }
            }
        }
    });
}

#[test]
fn datagrams_leave_from_the_source_that_was_asked_for() {
    let second_v6: IpNet = "fd00::2/64".parse().unwrap();
    let prepare = |namespace: &Namespace| {
        let far = Namespace::new("far").unwrap();
        let options = link::LinkOptions { addresses_a: vec![second_v6], ..Default::default() };
        link::join(namespace, &far, &options).unwrap();
        far
    };
    in_prepared_namespace(prepare, async || {
        await_local_route((second_v6.addr(), 0));
        let (mut a, mut b) = (open(), open());
        for (address, source) in [(V4, "127.0.0.2".parse().unwrap()), (V6, second_v6.addr())] {
            for sent in [&one(), &two()] {
                let transmit = Transmit { source: Some(source), ..to(address, b.port(), 32, sent) };
                let accepted = send(&mut a, transmit).await.unwrap();
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: None });
                for (meta, _) in receive(&mut b, sent.len() / 32).await {
                    assert_eq!(meta.source.ip(), source);
                }
            }
            // The answer is reported as sent to that address.
            send(&mut b, to(source, a.port(), 32, &one())).await.unwrap();
            assert_eq!(receive(&mut a, 1).await[0].0.local, Some(source));
        }
    });
}

/// Waits for the local route of a new IPv6 address. The kernel adds it some time later, and until then loses
/// what is sent to the address.
fn await_local_route(address: impl ToSocketAddrs) {
    let socket = StdSocket::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 1]).is_err() {
        let _ = socket.send_to(b"x", socket.local_addr().unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn a_source_that_is_not_ours_is_given_up_and_told() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        for (address, source) in [(V4, "192.0.2.7"), (V6, "2001:db8::7")] {
            for sent in [&one(), &two()] {
                let source = Some(source.parse().unwrap());
                let transmit = Transmit { source, ..to(address, b.port(), 32, sent) };
                let accepted = send(&mut a, transmit).await.unwrap();
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: true, path_mtu: None });
                let received = receive(&mut b, sent.len() / 32).await;
                assert_in_order(&received, sent, 32);
                assert_eq!(received[0].0.source.ip(), address);
            }
        }
        assert_eq!(a.stats().gso_fallbacks, 0, "the batch was not to blame");
    });
}

#[test]
fn segments_beyond_the_mtu_go_one_by_one_in_order_and_fragmented() {
    let prepare = |namespace: &Namespace| link::set_mtu(namespace, "lo", 1280).unwrap();
    in_prepared_namespace(prepare, async || {
        let all_protocols = c_int_be(libc::ETH_P_ALL);
        let capture = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all_protocols))).unwrap();
        capture.set_nonblocking(true).unwrap();
        let (mut a, mut b) = (open(), open());
        let sent = contents(1400, 1400 * 20 + 39);
        for address in [V4, V6] {
            for _ in 0..2 {
                let accepted = send(&mut a, to(address, b.port(), 1400, &sent)).await.unwrap();
                assert_eq!(accepted.bytes, sent.len());
                assert_in_order(&receive(&mut b, 21).await, &sent, 1400);
            }
        }
        assert_eq!(a.stats().gso_fallbacks, 4);
        assert_eq!(a.stats().batch_segments, [84, 0, 0, 0, 0, 0, 0]);

        // Datagrams that fit the MTU are still sent as a batch.
        let sent = contents(1100, 1100 * 20);
        send(&mut a, to(V4, b.port(), 1100, &sent)).await.unwrap();
        assert_in_order(&receive(&mut b, 20).await, &sent, 1100);
        assert_eq!(a.stats().batch_segments[5], 1);
        assert_eq!(a.stats().gso_fallbacks, 4);

        let flags: Vec<u8> = std::iter::from_fn(|| read_packet(&capture))
            .filter(|packet| packet[0] >> 4 == 4 && packet[9] == libc::IPPROTO_UDP as u8)
            .map(|packet| packet[6] >> 5)
            .collect();
        assert!(flags.contains(&0b001), "more fragments: {flags:?}");
        assert!(flags.iter().all(|flags| flags & 0b010 == 0), "don't fragment: {flags:?}");
    });
}

#[test]
fn a_peer_on_a_link_is_reached_by_its_zone_and_its_path_is_found() {
    let of_link: IpNet = "fe80::9/64".parse().unwrap();
    let prepare = |namespace: &Namespace| {
        link::set_mtu(namespace, "lo", 1280).unwrap();
        link::add_address(namespace, "lo", of_link).unwrap();
    };
    in_prepared_namespace(prepare, async || {
        let config = UdpConfig { path_mtu: PathMtu::On, ..UdpConfig::default() };
        let (mut a, mut b) = (UdpSockets::bind(&config).unwrap(), open());
        let address = |port| SocketAddr::from(SocketAddrV6::new("fe80::9".parse().unwrap(), port, 0, 1));
        await_local_route(address(0));
        let sent = contents(1400, 1400);
        let (destination, source) = (address(b.port()), Some(of_link.addr()));
        let transmit = Transmit { destination, source, ..to(V6, b.port(), 1400, &sent) };
        let accepted = send(&mut a, transmit).await.unwrap();
        assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: Some(1280) });
        assert_eq!(receive(&mut b, 1).await[0].0.source, address(a.port()));
    });
}

#[test]
fn with_discovery_what_is_too_long_goes_in_pieces_and_is_told_once() {
    let prepare = |namespace: &Namespace| link::set_mtu(namespace, "lo", 1280).unwrap();
    in_prepared_namespace(prepare, async || {
        let all_protocols = c_int_be(libc::ETH_P_ALL);
        let capture = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all_protocols))).unwrap();
        capture.set_nonblocking(true).unwrap();
        let config = UdpConfig { path_mtu: PathMtu::On, ..UdpConfig::default() };
        let (mut a, mut b) = (UdpSockets::bind(&config).unwrap(), open());
        for address in [V4, V6] {
            for (segments, path_mtu) in [(20, Some(1280)), (1, None)] {
                let sent = contents(1400, 1400 * segments);
                let accepted = send(&mut a, to(address, b.port(), 1400, &sent)).await.unwrap();
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu });
                assert_in_order(&receive(&mut b, segments).await, &sent, 1400);
            }
            // Datagrams that fit the MTU are still sent as a batch with DF, after longer ones too.
            let sent = contents(1100, 1100 * 20);
            send(&mut a, to(address, b.port(), 1100, &sent)).await.unwrap();
            assert_in_order(&receive(&mut b, 20).await, &sent, 1100);
        }
        assert_eq!((a.stats().batch_segments[5], a.stats().gso_fallbacks), (2, 2));
        let flags: Vec<(u8, bool)> = std::iter::from_fn(|| read_packet(&capture))
            .filter(|packet| packet[0] >> 4 == 4 && packet[9] == libc::IPPROTO_UDP as u8)
            .map(|packet| (packet[6] >> 5, packet.len() > 1280))
            .collect();
        assert!(flags.contains(&(0b001, false)), "more fragments: {flags:?}");
        assert!(flags.contains(&(0b010, true)), "a batch that is not to be fragmented: {flags:?}");
        assert!(flags.iter().all(|(flags, is_batch)| !is_batch || *flags == 0b010), "{flags:?}");
    });
}

fn c_int_be(protocol: i32) -> i32 {
    i32::from((protocol as u16).to_be())
}

fn read_packet(capture: &Socket) -> Option<Vec<u8>> {
    let mut packet = Vec::with_capacity(1 << 17);
    capture.recv(packet.spare_capacity_mut()).ok().map(|len| {
        // SAFETY: the kernel has just written that many bytes.
        unsafe { packet.set_len(len) };
        packet
    })
}

#[test]
fn no_route_is_an_error_of_that_transmit_alone() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        let nowhere = "192.0.2.1".parse().unwrap();
        for source in [None, Some(V4)] {
            let answer = send(&mut a, Transmit { source, ..to(nowhere, 9, 32, &two()) }).await;
            assert!(matches!(answer, Err(SendError::Failed(_))), "{answer:?}");
        }
        assert_eq!(send(&mut a, to(V4, b.port(), 32, &two())).await.unwrap().bytes, 64);
        assert_eq!(receive(&mut b, 2).await.len(), 2);
        assert_eq!(a.stats().batches_sent, 1);
    });
}
