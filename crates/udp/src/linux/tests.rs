//! What the sockets of Linux alone do, over the loopback interface of a fresh network namespace.

use std::future::poll_fn;
use std::net::UdpSocket as StdSocket;

use super::socket::UdpSocket;
use super::*;
use crate::tests::{V4, V6, assert_in_order, contents, in_namespace, open, receive, send, to};
use crate::{Received, RecvBuffers, Udp as _, UdpConfig, UdpSockets};

mod shards;
mod steering;

#[test]
fn what_is_told_of_the_send_buffer_is_that_of_the_sockets_that_send() {
    in_namespace(async || {
        let sockets = open();
        let bytes_of = |socket: &UdpSocket| system::send_buffer_bytes(socket.io.get_ref());
        let told = sockets.features().send_buffer_bytes;
        let family = sockets.v4.as_ref().unwrap();
        assert_eq!(told, bytes_of(family.first()));
        // The others keep the default of the system.
        assert!(family.each().skip(1).all(|other| bytes_of(other) < told), "{told}");
    });
}

#[test]
fn a_kernel_that_mangles_equal_segments_gets_them_one_by_one() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        a.sender = Sender::new(true, PathMtu::Off, true);
        for (len, histogram) in [(1000 * 8, [8, 0, 0, 0, 0, 0, 0]), (1000 * 7 + 32, [8, 0, 0, 1, 0, 0, 0])] {
            let sent = contents(1000, len);
            assert_eq!(send(&mut a, to(V4, b.port(), 1000, &sent)).await.unwrap().bytes, len);
            assert_in_order(&receive(&mut b, 8).await, &sent, 1000);
            assert_eq!(a.stats().batch_segments, histogram);
        }
    });
}

#[test]
fn without_gso_a_batch_is_one_call_of_single_datagrams() {
    in_namespace(async || {
        let mut a = UdpSockets::bind(&UdpConfig { gso: false, ..UdpConfig::default() }).unwrap();
        let mut b = open();
        let sent = contents(1000, 64_000);
        assert_eq!(send(&mut a, to(V6, b.port(), 1000, &sent)).await.unwrap().bytes, 64_000);
        assert_in_order(&receive(&mut b, 64).await, &sent, 1000);
        assert_eq!((a.stats().batches_sent, a.stats().datagrams_sent), (1, 64));
        assert_eq!(a.stats().gso_fallbacks, 0);
    });
}

#[test]
fn a_datagram_beyond_the_buffer_is_flagged() {
    in_namespace(async || {
        let (mut a, mut b) = (open(), open());
        let mut buffers = RecvBuffers::with(100, RecvBuffers::COUNT, 0, false);
        send(&mut a, to(V4, b.port(), 300, &contents(300, 300))).await.unwrap();
        send(&mut a, to(V4, b.port(), 100, &contents(100, 100))).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            poll_fn(|cx| b.poll_recv(cx, &mut buffers)).await.unwrap();
            while let Some(Received { bytes, truncated, .. }) = buffers.next() {
                seen.push((bytes.to_vec(), truncated));
            }
        }
        assert_eq!(seen, [(contents(300, 100), true), (contents(100, 100), false)]);
    });
}
