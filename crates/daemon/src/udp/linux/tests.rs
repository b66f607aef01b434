//! The sockets against the kernel, over the loopback interface of a fresh network namespace:
//!
//! ```text
//!   ┌─ namespace ─────────────────────────────┐
//!   │  a: UdpSockets ──── lo ──── b: UdpSockets│
//!   └─────────────────────────────────────────┘
//! ```

use std::future::poll_fn;
use std::net::{IpAddr, UdpSocket as StdSocket};
use std::os::fd::AsRawFd;

use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, Type};
use weft_tunnel::{Ecn, RecvMeta};

use super::super::{PathMtu, Received};
use super::*;
use crate::lab::{self, Namespace, link};

const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

/// Runs a test within a fresh namespace, to which `prepare` may do something first. What that gives is kept.
fn in_namespace<T>(test: &str, prepare: impl FnOnce(&Namespace) -> T, body: impl AsyncFnOnce() + Send) {
    if !lab::namespaces_permitted(test) {
        return;
    }
    let namespace = Namespace::new("udp").unwrap();
    let _kept = prepare(&namespace);
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(body());
    });
}

fn open() -> UdpSockets {
    UdpSockets::bind(&UdpConfig::default()).unwrap()
}

/// `len` bytes, each datagram of which is filled with its number.
fn contents(segment_size: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / segment_size) as u8).collect()
}

fn to(address: IpAddr, port: u16, segment_size: usize, contents: &[u8]) -> Transmit<'_> {
    let destination = SocketAddr::new(address, port);
    Transmit { destination, source: None, ecn: Ecn::NotEct, segment_size, contents }
}

async fn send(sockets: &mut UdpSockets, transmit: Transmit<'_>) -> Result<Sent, SendError> {
    poll_fn(|cx| sockets.poll_send(cx, &transmit)).await
}

async fn receive(sockets: &mut UdpSockets, datagrams: usize) -> Vec<(RecvMeta, Vec<u8>)> {
    let mut buffers = RecvBuffers::new();
    let mut received = Vec::new();
    while received.len() < datagrams {
        assert!(poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap() > 0);
        while let Some(Received { meta, bytes, truncated }) = buffers.next_datagram() {
            assert!(!truncated);
            received.push((meta, bytes.to_vec()));
        }
    }
    received
}

fn assert_in_order(received: &[(RecvMeta, Vec<u8>)], sent: &[u8], segment_size: usize) {
    assert_eq!(received.len(), sent.len().div_ceil(segment_size));
    for ((_, bytes), expected) in received.iter().zip(sent.chunks(segment_size)) {
        assert_eq!(bytes, expected);
    }
}

#[test]
fn a_batch_travels_whole_and_is_received_with_its_stride() {
    in_namespace(
        "a_batch_travels_whole_and_is_received_with_its_stride",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            let sent = contents(1200, 1200 * 30 + 7);
            for address in [V4, V6] {
                let accepted = send(&mut a, to(address, b.port(), 1200, &sent)).await.unwrap();
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: None });
                let received = receive(&mut b, 31).await;
                assert_in_order(&received, &sent, 1200);
                for (meta, _) in &received {
                    assert_eq!(meta.source, SocketAddr::new(address, a.port()));
                    assert_eq!(meta.local, Some(address));
                    assert_eq!((meta.stride, meta.len), (1200, sent.len()));
                }
            }
            let stats = a.stats();
            assert_eq!((stats.datagrams_sent, stats.batches_sent), (62, 2));
            assert_eq!(stats.batch_segments, [0, 0, 0, 0, 0, 2, 0]);
            assert_eq!(stats.bytes_sent, 2 * sent.len() as u64);
            let stats = b.stats();
            assert_eq!((stats.datagrams_received, stats.recv_calls), (62, 2));
            assert_eq!(stats.bytes_received, 2 * sent.len() as u64);
        },
    );
}

#[test]
fn a_batch_is_separate_datagrams_for_any_other_program() {
    in_namespace(
        "a_batch_is_separate_datagrams_for_any_other_program",
        |_| (),
        async || {
            let mut a = open();
            for (address, equal) in [(V4, true), (V4, false), (V6, true), (V6, false)] {
                let other = StdSocket::bind((address, 0)).unwrap();
                let port = other.local_addr().unwrap().port();
                let sent = contents(1000, 1000 * 64 - if equal { 0 } else { 1 });
                let accepted = send(&mut a, to(address, port, 1000, &sent)).await.unwrap();
                assert_eq!(accepted.bytes, sent.len());
                for expected in sent.chunks(1000) {
                    let mut bytes = [0; 2000];
                    let len = other.recv(&mut bytes).unwrap();
                    assert_eq!(&bytes[..len], expected);
                }
            }
        },
    );
}

#[test]
fn one_call_takes_what_udp_carries_and_says_so() {
    in_namespace(
        "one_call_takes_what_udp_carries_and_says_so",
        |_| (),
        async || {
            let mut a = open();
            let sent = contents(1000, 80_000);
            let accepted = send(&mut a, to(V4, 9, 1000, &sent)).await.unwrap();
            assert_eq!(accepted.bytes, 64_000);
            let accepted = send(&mut a, to(V4, 9, 1452, &sent)).await.unwrap();
            assert_eq!(accepted.bytes, 45 * 1452);
        },
    );
}

#[test]
fn ecn_is_sent_and_reported() {
    in_namespace(
        "ecn_is_sent_and_reported",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            for address in [V4, V6] {
                for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
                    for sent in [&b"one"[..], b"onetwo"] {
                        let accepted =
                            send(&mut a, Transmit { ecn, ..to(address, b.port(), 3, sent) }).await.unwrap();
                        assert_eq!(accepted.bytes, sent.len());
                        let received = receive(&mut b, sent.len() / 3).await;
                        assert!(received.iter().all(|(meta, _)| meta.ecn == ecn), "{received:?}");
                    }
                }
            }
        },
    );
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
    in_namespace("datagrams_leave_from_the_source_that_was_asked_for", prepare, async || {
        await_local_route(second_v6.addr());
        let (mut a, mut b) = (open(), open());
        for (address, source) in [(V4, "127.0.0.2".parse().unwrap()), (V6, second_v6.addr())] {
            for sent in [&b"one"[..], b"onetwo"] {
                let transmit = Transmit { source: Some(source), ..to(address, b.port(), 3, sent) };
                let accepted = send(&mut a, transmit).await.unwrap();
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: None });
                for (meta, _) in receive(&mut b, sent.len() / 3).await {
                    assert_eq!(meta.source.ip(), source);
                }
            }
            // And the answer to that address is reported as sent to it.
            send(&mut b, to(source, a.port(), 3, b"one")).await.unwrap();
            assert_eq!(receive(&mut a, 1).await[0].0.local, Some(source));
        }
    });
}

/// The kernel adds the local route of a new IPv6 address some time later, and until then loses what is sent there.
fn await_local_route(address: IpAddr) {
    let socket = StdSocket::bind((address, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.recv(&mut [0; 1]).is_err() {
        let _ = socket.send_to(b"x", socket.local_addr().unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn a_source_that_is_not_ours_is_given_up_and_told() {
    in_namespace(
        "a_source_that_is_not_ours_is_given_up_and_told",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            for (address, source) in [(V4, "192.0.2.7"), (V6, "2001:db8::7")] {
                for sent in [&b"one"[..], b"onetwo"] {
                    let source = Some(source.parse().unwrap());
                    let transmit = Transmit { source, ..to(address, b.port(), 3, sent) };
                    let accepted = send(&mut a, transmit).await.unwrap();
                    assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: true, path_mtu: None });
                    let received = receive(&mut b, sent.len() / 3).await;
                    assert_in_order(&received, sent, 3);
                    assert_eq!(received[0].0.source.ip(), address);
                }
            }
            assert_eq!(a.stats().gso_fallbacks, 0, "the batch was not to blame");
        },
    );
}

#[test]
fn segments_beyond_the_mtu_go_one_by_one_in_order_and_fragmented() {
    let prepare = |namespace: &Namespace| link::set_mtu(namespace, "lo", 1280).unwrap();
    in_namespace("segments_beyond_the_mtu_go_one_by_one_in_order_and_fragmented", prepare, async || {
        let all_protocols = c_int_be(libc::ETH_P_ALL);
        let capture = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(all_protocols))).unwrap();
        capture.set_nonblocking(true).unwrap();
        let (mut a, mut b) = (open(), open());
        let sent = contents(1400, 1400 * 20 + 9);
        for address in [V4, V6] {
            for _ in 0..2 {
                let accepted = send(&mut a, to(address, b.port(), 1400, &sent)).await.unwrap();
                assert_eq!(accepted.bytes, sent.len());
                assert_in_order(&receive(&mut b, 21).await, &sent, 1400);
            }
        }
        assert_eq!(a.stats().gso_fallbacks, 4);
        assert_eq!(a.stats().batch_segments, [84, 0, 0, 0, 0, 0, 0]);

        // What fits the MTU is still sent as a batch.
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
fn with_discovery_what_is_too_long_goes_in_pieces_and_is_told_once() {
    let test = "with_discovery_what_is_too_long_goes_in_pieces_and_is_told_once";
    let prepare = |namespace: &Namespace| link::set_mtu(namespace, "lo", 1280).unwrap();
    in_namespace(test, prepare, async || {
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
            // What fits is a batch and has DF, after the others as well.
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
fn a_kernel_that_mangles_equal_segments_gets_them_one_by_one() {
    in_namespace(
        "a_kernel_that_mangles_equal_segments_gets_them_one_by_one",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            a.sender = Sender::new(true, PathMtu::Off, kernel::Release::parse("7.1.4"));
            for (len, histogram) in [(1000 * 8, [8, 0, 0, 0, 0, 0, 0]), (1000 * 7 + 1, [8, 0, 0, 1, 0, 0, 0])]
            {
                let sent = contents(1000, len);
                assert_eq!(send(&mut a, to(V4, b.port(), 1000, &sent)).await.unwrap().bytes, len);
                assert_in_order(&receive(&mut b, 8).await, &sent, 1000);
                assert_eq!(a.stats().batch_segments, histogram);
            }
        },
    );
}

#[test]
fn without_gso_a_batch_is_one_call_of_single_datagrams() {
    in_namespace(
        "without_gso_a_batch_is_one_call_of_single_datagrams",
        |_| (),
        async || {
            let mut a = UdpSockets::bind(&UdpConfig { gso: false, ..UdpConfig::default() }).unwrap();
            let mut b = open();
            let sent = contents(1000, 64_000);
            assert_eq!(send(&mut a, to(V6, b.port(), 1000, &sent)).await.unwrap().bytes, 64_000);
            assert_in_order(&receive(&mut b, 64).await, &sent, 1000);
            assert_eq!((a.stats().batches_sent, a.stats().datagrams_sent), (1, 64));
            assert_eq!(a.stats().gso_fallbacks, 0);
        },
    );
}

#[test]
fn a_datagram_beyond_what_udp_carries_is_too_long() {
    in_namespace(
        "a_datagram_beyond_what_udp_carries_is_too_long",
        |_| (),
        async || {
            let mut a = open();
            let sent = vec![0; 65_508];
            let answer = send(&mut a, to(V4, 9, 65_508, &sent)).await;
            assert!(matches!(answer, Err(SendError::TooLong)), "{answer:?}");
        },
    );
}

#[test]
fn no_route_is_an_error_of_that_transmit_alone() {
    in_namespace(
        "no_route_is_an_error_of_that_transmit_alone",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            let nowhere = "192.0.2.1".parse().unwrap();
            for source in [None, Some(V4)] {
                let answer = send(&mut a, Transmit { source, ..to(nowhere, 9, 3, b"onetwo") }).await;
                assert!(matches!(answer, Err(SendError::Failed(_))), "{answer:?}");
            }
            assert_eq!(send(&mut a, to(V4, b.port(), 3, b"onetwo")).await.unwrap().bytes, 6);
            assert_eq!(receive(&mut b, 2).await.len(), 2);
            assert_eq!(a.stats().batches_sent, 1);
        },
    );
}

#[test]
fn one_family_alone_works_and_refuses_the_other() {
    in_namespace(
        "one_family_alone_works_and_refuses_the_other",
        |_| (),
        async || {
            let config = UdpConfig::default();
            let (v4, _) = socket::bind_both(&config).unwrap();
            let mut a =
                UdpSockets::from_sockets(v4.into_iter().collect(), Vec::new(), true, &config).unwrap();
            let mut b = open();
            assert_eq!(send(&mut a, to(V4, b.port(), 3, b"one")).await.unwrap().bytes, 3);
            receive(&mut b, 1).await;
            let answer = send(&mut a, to(V6, b.port(), 3, b"one")).await;
            let Err(SendError::Failed(error)) = answer else { panic!("{answer:?}") };
            assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT));
        },
    );
}

#[test]
fn a_full_socket_takes_a_part_then_waits_for_room() {
    let test = "a_full_socket_takes_a_part_then_waits_for_room";
    if !lab::namespaces_permitted(test) {
        return;
    }
    // Nobody answers for 10.9.0.99, so what is sent there waits in the neighbour's queue and fills the socket.
    //   ┌─ near ────────────┐      ┌─ far ─┐
    //   │ eth0 10.9.0.1/24  ├──────┤ eth0  │
    //   └───────────────────┘      └───────┘
    let (near, far) = (Namespace::new("near").unwrap(), Namespace::new("far").unwrap());
    let addresses_a = vec!["10.9.0.1/24".parse().unwrap()];
    link::join(&near, &far, &link::LinkOptions { addresses_a, ..Default::default() }).unwrap();
    near.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _context = runtime.enter();
        let mut sockets = UdpSockets::bind(&UdpConfig { gso: false, ..UdpConfig::default() }).unwrap();
        let v4 = sockets.v4.as_ref().unwrap().first().io.get_ref();
        socket::set_option(v4, libc::SOL_SOCKET, libc::SO_SNDBUF, 1).unwrap();
        let control = v4.try_clone().unwrap();

        let sent = contents(1000, 64_000);
        let (mut unsent, mut parts, mut waited) = (&sent[..], 0, false);
        runtime.block_on(poll_fn(|cx| {
            while !unsent.is_empty() {
                match sockets.poll_send(cx, &to("10.9.0.99".parse().unwrap(), 9, 1000, unsent)) {
                    Poll::Ready(result) => {
                        let Sent { bytes, .. } = result.unwrap();
                        assert!(bytes > 0 && bytes % 1000 == 0);
                        (unsent, parts) = (&unsent[bytes..], parts + 1);
                    }
                    Poll::Pending => {
                        // The first time it only means that the runtime has not looked at the socket yet.
                        if parts > 0 && !waited {
                            waited = true;
                            resolve_neighbour(&control, [10, 9, 0, 99]);
                        }
                        return Poll::Pending;
                    }
                }
            }
            Poll::Ready(())
        }));
        assert!(waited && parts > 1);
        assert_eq!(sockets.stats().datagrams_sent, 64);
    });
}

/// Lets the kernel know the hardware address of a neighbour on eth0.
fn resolve_neighbour(socket: &Socket, address: [u8; 4]) {
    // SAFETY: an arpreq of zeros is valid.
    let mut request: libc::arpreq = unsafe { std::mem::zeroed() };
    request.arp_pa.sa_family = libc::AF_INET as libc::sa_family_t;
    // A sockaddr_in: port, then address.
    for (place, byte) in request.arp_pa.sa_data[2..].iter_mut().zip(address) {
        *place = byte as libc::c_char;
    }
    request.arp_ha.sa_family = libc::ARPHRD_ETHER;
    request.arp_ha.sa_data[0] = 2;
    request.arp_flags = libc::ATF_PERM | libc::ATF_COM;
    for (place, byte) in request.arp_dev.iter_mut().zip(b"eth0") {
        *place = *byte as libc::c_char;
    }
    // SAFETY: SIOCSARP reads an arpreq, which lives until after the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSARP, &raw const request) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_datagram_beyond_the_buffer_is_flagged() {
    in_namespace(
        "a_datagram_beyond_the_buffer_is_flagged",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            let mut buffers = RecvBuffers::with_buffer_bytes(100);
            send(&mut a, to(V4, b.port(), 300, &[1; 300])).await.unwrap();
            send(&mut a, to(V4, b.port(), 100, &[2; 100])).await.unwrap();
            let mut seen = Vec::new();
            while seen.len() < 2 {
                poll_fn(|cx| b.poll_recv(cx, &mut buffers)).await.unwrap();
                while let Some(Received { bytes, truncated, .. }) = buffers.next() {
                    seen.push((bytes.to_vec(), truncated));
                }
            }
            assert_eq!(seen, [(vec![1; 100], true), (vec![2; 100], false)]);
        },
    );
}

#[test]
fn what_the_receive_buffer_has_no_room_for_is_counted_also_after_another_port_was_bound() {
    in_namespace(
        "what_the_receive_buffer_has_no_room_for_is_counted_also_after_another_port_was_bound",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            let sent = contents(1200, 1200 * 40);
            // 7 MiB, which the kernel doubles, are full long before.
            for _ in 0..2000 {
                send(&mut a, to(V4, b.port(), 1200, &sent)).await.unwrap();
            }
            let lost = b.stats().receive_overflows;
            assert!(lost > 0, "{:?}", b.stats());
            b.rebind(Some(0), None).unwrap();
            assert_eq!(b.stats().receive_overflows, lost);
        },
    );
}

#[test]
fn neither_family_starves_the_other() {
    in_namespace(
        "neither_family_starves_the_other",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            for _ in 0..3 * RecvBuffers::COUNT {
                send(&mut a, to(V4, b.port(), 3, b"one")).await.unwrap();
            }
            send(&mut a, to(V6, b.port(), 3, b"six")).await.unwrap();
            let mut buffers = RecvBuffers::new();
            let mut families = Vec::new();
            for _ in 0..2 {
                buffers.clear();
                // The runtime learns which sockets have something, as it does between turns.
                tokio::task::yield_now().await;
                poll_fn(|cx| b.poll_recv(cx, &mut buffers)).await.unwrap();
                while let Some(received) = buffers.next() {
                    families.push(received.meta.source.is_ipv6());
                }
            }
            assert!(families.contains(&false) && families.contains(&true), "{families:?}");
        },
    );
}

#[test]
fn both_families_share_a_random_port() {
    in_namespace(
        "both_families_share_a_random_port",
        |_| (),
        async || {
            let sockets = open();
            assert_ne!(sockets.port(), 0);
            let ports = [&sockets.v4, &sockets.v6].map(|lanes| lanes.as_ref().unwrap().first().local_port());
            assert_eq!(ports, [Some(sockets.port()); 2]);
        },
    );
}

#[test]
fn what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send() {
    in_namespace(
        "what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send",
        |_| (),
        async || {
            let sockets = open();
            let told = sockets.features().send_buffer_bytes;
            let lanes = sockets.v4.as_ref().unwrap();
            assert_eq!(told, lanes.first().send_buffer_bytes());
            // As the system gives it.
            assert!(lanes.each().skip(1).all(|other| other.send_buffer_bytes() < told), "{told}");
        },
    );
}

#[test]
fn a_busy_port_is_named() {
    in_namespace(
        "a_busy_port_is_named",
        |_| (),
        async || {
            let config = UdpConfig { port: 51820, ..UdpConfig::default() };
            let first = UdpSockets::bind(&config).unwrap();
            assert_eq!(first.port(), 51820);
            let error = UdpSockets::bind(&config).unwrap_err().to_string();
            assert!(error.starts_with("port 51820 is in use by another program"), "{error}");
            assert!(error.contains("0.0.0.0:51820"), "{error}");

            let config = UdpConfig { port: 51821, ..config };
            let v6_only = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
            v6_only.set_only_v6(true).unwrap();
            v6_only.bind(&SocketAddr::new(V6, 51821).into()).unwrap();
            let error = UdpSockets::bind(&config).unwrap_err().to_string();
            assert!(error.contains("[::]:51821"), "{error}");

            // A child that another test has just forked may hold it for a moment.
            drop(v6_only);
            lab::wait_until_ok(|| UdpSockets::bind(&config).map(drop).map_err(|error| error.to_string()));
        },
    );
}

#[test]
fn the_firewall_mark_is_set_on_both_sockets() {
    in_namespace(
        "the_firewall_mark_is_set_on_both_sockets",
        |_| (),
        async || {
            let config = UdpConfig { fwmark: 0xca6c, ..UdpConfig::default() };
            let sockets = UdpSockets::bind(&config).unwrap();
            for socket in sockets.each() {
                assert_eq!(socket.io.get_ref().mark().unwrap(), 0xca6c);
            }
        },
    );
}

#[test]
fn opening_needs_no_privilege_without_a_mark() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _context = runtime.enter();
    open();
}
