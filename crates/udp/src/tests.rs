//! The sockets against the kernel, over the loopback interface of a fresh network namespace:
//!
//! ```text
//!   ┌─ namespace ─────────────────────────────┐
//!   │  a: UdpSockets ──── lo ──── b: UdpSockets│
//!   └─────────────────────────────────────────┘
//! ```

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdSocket};
use std::os::fd::AsRawFd as _;
use std::task::Poll;

use ipnet::IpNet;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use weft_lab::{self as lab, Namespace, here, link};
use weft_tunnel::{Ecn, RecvMeta, Transmit};

use super::*;

mod batches;
mod open;
mod paths;
mod room;

pub(crate) const V4: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);

/// Runs a test in a fresh namespace.
pub(crate) fn in_namespace(body: impl AsyncFnOnce() + Send) {
    in_prepared_namespace(|_| (), body);
}

/// Runs a test in a fresh namespace, after `prepare`. The result of `prepare` is kept until the test has
/// ended.
pub(crate) fn in_prepared_namespace<T>(
    prepare: impl FnOnce(&Namespace) -> T,
    body: impl AsyncFnOnce() + Send,
) {
    if !here::namespaces_permitted() {
        return;
    }
    let namespace = Namespace::new("udp").unwrap();
    let _kept = prepare(&namespace);
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(body());
    });
}

impl UdpSockets {
    /// Returns sockets of a machine without IPv6.
    pub(crate) fn of_v4_alone() -> Self {
        let config = UdpConfig::default();
        let (v4, _) = bind::bind_both(&config).unwrap();
        let v4 = v4.into_iter().collect();
        ShardSockets::all(v4, Vec::new(), true, &config, 1).unwrap().remove(0).register().unwrap()
    }
}

pub(crate) fn open() -> UdpSockets {
    UdpSockets::bind(&UdpConfig::default()).unwrap()
}

/// Returns `len` bytes in datagrams: each has the type of data and is filled with its number.
pub(crate) fn contents(segment_size: usize, len: usize) -> Vec<u8> {
    let header = |at: usize| [4, 0, 0, 0].get(at % segment_size).copied();
    (0..len).map(|at| header(at).unwrap_or((at / segment_size) as u8)).collect()
}

/// Returns two messages of 32 bytes. [`one`] returns the first of them.
pub(crate) fn two() -> Vec<u8> {
    contents(32, 64)
}

pub(crate) fn one() -> Vec<u8> {
    contents(32, 32)
}

pub(crate) fn to(address: IpAddr, port: u16, segment_size: usize, contents: &[u8]) -> Transmit<'_> {
    let destination = SocketAddr::new(address, port);
    Transmit { destination, source: None, ecn: Ecn::NotEct, segment_size, contents }
}

pub(crate) async fn send(sockets: &mut UdpSockets, transmit: Transmit<'_>) -> Result<Sent, SendError> {
    poll_fn(|cx| sockets.poll_send(cx, &transmit)).await
}

pub(crate) async fn receive(sockets: &mut UdpSockets, datagrams: usize) -> Vec<(RecvMeta, Vec<u8>)> {
    let mut buffers = RecvBuffers::default();
    let mut received = Vec::new();
    while received.len() < datagrams {
        assert!(poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap() > 0);
        while let Some(Received { meta, bytes, truncated, .. }) = buffers.next_datagram() {
            assert!(!truncated);
            received.push((meta, bytes.to_vec()));
        }
    }
    received
}

pub(crate) fn assert_in_order(received: &[(RecvMeta, Vec<u8>)], sent: &[u8], segment_size: usize) {
    assert_eq!(received.len(), sent.len().div_ceil(segment_size));
    for ((_, bytes), expected) in received.iter().zip(sent.chunks(segment_size)) {
        assert_eq!(bytes, expected);
    }
}

#[test]
fn full_sockets_take_an_eighth_of_the_memory() {
    assert_eq!(receive_buffer_bytes(None, 1), 7 << 20);
    assert_eq!(receive_buffer_bytes(Some(4 << 20), 1), 256 << 10);
    assert_eq!(receive_buffer_bytes(Some(4 << 30), 1), 7 << 20);
    for shards in [1, 3] {
        let sockets = receiving_sockets(shards);
        // As much again for the kernel's bookkeeping.
        let small = 16 * sockets as u64 * (1 << 20);
        assert_eq!(sockets * 2 * receive_buffer_bytes(Some(small), shards), small as usize / 8);
    }
}
