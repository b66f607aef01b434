//! All over loopback:
//! ```text
//!   many sources ──── lo ──── UdpSockets
//! ```

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::UdpSocket as StdSocket;

use super::super::UdpSockets;
use super::super::socket::{bind, set_option};
use super::*;
use crate::lab::{self, Namespace, link};
use crate::udp::Udp as _;

fn in_namespace(test: &str, body: impl AsyncFnOnce() + Send) {
    if !lab::namespaces_permitted(test) {
        return;
    }
    let namespace = Namespace::new("udp").unwrap();
    link::set_up(&namespace, "lo").unwrap();
    namespace.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(body());
    });
}

fn source() -> StdSocket {
    StdSocket::bind(("127.0.0.1", 0)).unwrap()
}

/// The first byte of each datagram, by the port that it came from.
type ByPort = HashMap<u16, Vec<u8>>;

/// What arrives, until it is so many datagrams.
async fn receive(sockets: &mut UdpSockets, datagrams: usize) -> ByPort {
    let mut buffers = RecvBuffers::new();
    let mut received = ByPort::new();
    while received.values().map(Vec::len).sum::<usize>() < datagrams {
        poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap();
        while let Some(datagram) = buffers.next_datagram() {
            received.entry(datagram.meta.source.port()).or_default().push(datagram.bytes[0]);
        }
    }
    received
}

#[test]
fn a_source_that_fills_its_lane_costs_the_others_nothing() {
    in_namespace("a_source_that_fills_its_lane_costs_the_others_nothing", async || {
        let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        for lane in sockets.each() {
            set_option(lane.io.get_ref(), libc::SOL_SOCKET, libc::SO_RCVBUF, 16_384).unwrap();
        }
        let to = ("127.0.0.1", sockets.port());
        let flood = source();
        for _ in 0..200 {
            flood.send_to(&[0; 1000], to).unwrap();
        }
        assert!(sockets.stats().receive_overflows > 100);
        let held = 200 - sockets.stats().receive_overflows as usize;
        let others: Vec<_> = (0..64).map(|_| source()).collect();
        for other in &others {
            other.send_to(&[1; 100], to).unwrap();
        }
        let lost = sockets.stats().receive_overflows as usize - (200 - held);
        // An eighth shares the lane of the flood: half of 64 would be a miracle.
        assert!((1..32).contains(&lost), "{lost} of 64 lost everything to the flood");
        assert_eq!(receive(&mut sockets, held + 64 - lost).await.len(), 1 + 64 - lost);
    });
}

#[test]
fn who_sends_long_datagrams_gets_no_more_bytes_than_who_sends_short_ones() {
    in_namespace("who_sends_long_datagrams_gets_no_more_bytes_than_who_sends_short_ones", async || {
        let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let to = ("127.0.0.1", sockets.port());
        let lane_of = |sockets: &UdpSockets, source: &StdSocket| {
            source.send_to(&[0], to).unwrap();
            let (mut buffers, mut stats) = (RecvBuffers::new(), UdpStats::default());
            sockets.each().position(|socket| {
                recv::recv(socket.io.get_ref().as_fd(), &mut buffers, 1, &mut stats).is_ok()
            })
        };
        // Nothing waits from before there were lanes.
        let mut buffers = RecvBuffers::new();
        assert!(poll_fn(|cx| Poll::Ready(sockets.poll_recv(cx, &mut buffers).is_pending())).await);
        let long = source();
        let lane = lane_of(&sockets, &long);
        let short = std::iter::repeat_with(source).find(|other| lane_of(&sockets, other) != lane).unwrap();
        for _ in 0..100 {
            long.send_to(&[0; 16_000], to).unwrap();
        }
        for _ in 0..800 {
            short.send_to(&[0; 2000], to).unwrap();
        }
        assert_eq!(sockets.stats().receive_overflows, 0);
        // Once both are known to have something and as long as they do, with a few buffers free at a time as in a busy
        // event loop.
        let (mut bytes, mut all) = (HashMap::<u16, usize>::new(), 0);
        while all < 1_600_000 {
            // The runtime learns which sockets have something, as it does between turns.
            tokio::task::yield_now().await;
            poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap();
            while buffers.filled() > RecvBuffers::COUNT - 4
                && let Some(received) = buffers.next()
            {
                all += received.bytes.len();
                if all > 600_000 {
                    *bytes.entry(received.meta.source.port()).or_default() += received.bytes.len();
                }
            }
        }
        let [long, short] = [long, short].map(|source| bytes[&source.local_addr().unwrap().port()] as f64);
        assert!((0.7..1.4).contains(&(long / short)), "{long} and {short} bytes");
    });
}

#[test]
fn what_a_source_sent_before_there_were_lanes_comes_out_first() {
    in_namespace("what_a_source_sent_before_there_were_lanes_comes_out_first", async || {
        let first = bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
        let port = first.local_addr().unwrap().as_socket().unwrap().port();
        let sources: Vec<_> = (0..16).map(|_| source()).collect();
        let send = |numbers: std::ops::Range<u8>| {
            for number in numbers {
                for source in &sources {
                    source.send_to(&[number; 10], ("127.0.0.1", port)).unwrap();
                }
            }
        };
        send(0..12);
        let config = UdpConfig { port, ..UdpConfig::default() };
        let mut sockets = UdpSockets::adopt(vec![first.into()], &config).unwrap();
        assert_eq!(sockets.v4.as_ref().unwrap().each().count(), LANES);
        send(12..24);

        let received = receive(&mut sockets, 16 * 24).await;
        assert_eq!(received.len(), sources.len());
        for (port, numbers) in received {
            assert_eq!(numbers, (0..24).collect::<Vec<_>>(), "from port {port}");
        }
    });
}

#[test]
fn all_lanes_are_handed_over_with_what_they_hold() {
    in_namespace("all_lanes_are_handed_over_with_what_they_hold", async || {
        let before = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let config = UdpConfig { port: before.port(), ..UdpConfig::default() };
        let sources: Vec<_> = (0..64).map(|_| source()).collect();
        for source in &sources {
            source.send_to(&[0], ("127.0.0.1", config.port)).unwrap();
        }
        let descriptors = before.descriptors().unwrap();
        assert_eq!(descriptors.len(), 2 * LANES);
        drop(before);
        let mut after = UdpSockets::adopt(descriptors, &config).unwrap();
        assert_eq!(after.each().count(), 2 * LANES);
        for source in &sources {
            source.send_to(&[1], ("127.0.0.1", config.port)).unwrap();
        }
        let received = receive(&mut after, 128).await;
        assert_eq!(received.len(), sources.len());
        assert!(received.values().all(|numbers| numbers == &[0, 1]), "{received:?}");
    });
}

#[test]
fn nobody_else_gets_the_port() {
    in_namespace("nobody_else_gets_the_port", async || {
        let sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let config = UdpConfig { port: sockets.port(), ..UdpConfig::default() };
        let error = UdpSockets::bind(&config).unwrap_err();
        assert!(matches!(error, BindError::PortInUse { .. }), "{error}");
        drop(sockets);
        UdpSockets::bind(&config).unwrap();
    });
}
