//! The sockets against the system, over its loopback interface. What the sender does about errors is tested
//! on Linux, against a script.

use std::future::poll_fn;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use weft_tunnel::{Ecn, RecvMeta, Transmit};

use crate::{BindError, Received, RecvBuffers, Sent, Udp as _, UdpConfig, UdpSockets};

const V4: std::net::IpAddr = std::net::IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: std::net::IpAddr = std::net::IpAddr::V6(Ipv6Addr::LOCALHOST);

fn run(body: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(body());
}

fn open() -> UdpSockets {
    UdpSockets::bind(&UdpConfig::default()).unwrap()
}

/// Returns datagrams of 100 bytes, each filled with its number; the last is shorter.
fn datagrams(count: usize) -> Vec<u8> {
    (0..100 * count - 37).map(|at| (at / 100) as u8).collect()
}

fn to(address: std::net::IpAddr, port: u16, contents: &[u8]) -> Transmit<'_> {
    let destination = SocketAddr::new(address, port);
    Transmit { destination, source: None, ecn: Ecn::NotEct, segment_size: 100, contents }
}

async fn send(sockets: &mut UdpSockets, transmit: Transmit<'_>) -> Sent {
    poll_fn(|cx| sockets.poll_send(cx, &transmit)).await.unwrap()
}

async fn receive(sockets: &mut UdpSockets, datagrams: usize) -> Vec<(RecvMeta, Vec<u8>)> {
    let mut buffers = RecvBuffers::default();
    let mut received = Vec::new();
    while received.len() < datagrams {
        assert!(poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap() > 0);
        while let Some(Received { meta, bytes, .. }) = buffers.next_datagram() {
            received.push((meta, bytes.to_vec()));
        }
    }
    received
}

#[test]
fn datagrams_arrive_whole_in_order_with_their_addresses() {
    run(async || {
        let (mut a, mut b) = (open(), open());
        let sent = datagrams(30);
        for address in [V4, V6] {
            for _ in 0..3 {
                let accepted = send(&mut a, to(address, b.port(), &sent)).await;
                assert_eq!(accepted, Sent { bytes: sent.len(), source_unusable: false, path_mtu: None });
                let received = receive(&mut b, 30).await;
                assert!(received.iter().map(|(_, bytes)| &bytes[..]).eq(sent.chunks(100)));
                for (meta, _) in received {
                    assert_eq!(meta.source, SocketAddr::new(address, a.port()));
                    assert_eq!(meta.local, Some(address));
                }
            }
        }
        assert_eq!((a.stats().datagrams_sent, b.stats().datagrams_received), (180, 180));
        assert_eq!(a.stats().bytes_sent, b.stats().bytes_received);
    });
}

#[test]
fn a_datagram_leaves_from_the_source_that_was_asked_for() {
    run(async || {
        let (mut a, mut b) = (open(), open());
        let sent = datagrams(1);
        let transmit = Transmit { source: Some(V4), ..to(V4, b.port(), &sent) };
        assert!(!send(&mut a, transmit).await.source_unusable);
        assert_eq!(receive(&mut b, 1).await[0].0.source, SocketAddr::new(V4, a.port()));
    });
}

#[test]
fn a_port_that_refuses_datagrams_ends_no_receive() {
    run(async || {
        let (mut a, mut b) = (open(), open());
        let closed = open().port();
        let sent = datagrams(1);
        send(&mut a, to(V4, closed, &sent)).await;
        send(&mut b, to(V4, a.port(), &sent)).await;
        assert_eq!(receive(&mut a, 1).await.len(), 1);
    });
}

#[test]
fn a_receiver_waits_for_each_datagram() {
    run(async || {
        let (mut a, mut b) = (open(), open());
        let port = b.port();
        for number in 0..100 {
            let sent = [number; 50];
            let sends = async {
                tokio::task::yield_now().await;
                send(&mut a, to(V4, port, &sent)).await
            };
            let (_, received) = tokio::join!(sends, receive(&mut b, 1));
            assert_eq!(received[0].1, sent);
        }
    });
}

#[test]
fn a_firewall_mark_is_refused_by_name() {
    run(async || {
        let error = UdpSockets::bind(&UdpConfig { fwmark: 0xca6c, ..UdpConfig::default() }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "FwMark = 0xca6c is not available on Windows: packets have no mark there"
        );
        let mut sockets = open();
        let port = sockets.port();
        assert!(matches!(sockets.rebind(None, Some(1)), Err(BindError::FwmarkUnavailable { .. })));
        assert_eq!(sockets.rebind(None, Some(0)).unwrap(), port);
    });
}

#[test]
fn a_busy_port_is_named_and_another_can_be_taken() {
    run(async || {
        let mut first = open();
        let config = UdpConfig { port: first.port(), ..UdpConfig::default() };
        let error = UdpSockets::bind(&config).unwrap_err();
        assert!(matches!(error, BindError::PortInUse { .. }), "{error}");
        let before = first.port();
        assert_ne!(first.rebind(Some(0), None).unwrap(), before);
        UdpSockets::bind(&config).unwrap();
    });
}
