//! All over loopback:
//! ```text
//!   many sources ──── lo ──── UdpSockets
//! ```

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::UdpSocket as StdSocket;

use std::net::Ipv4Addr;

use weft_lab::{self as lab, Namespace, link};

use super::super::program::Key;
use super::super::socket::{bind, set_option};
use super::super::steering::SOCKETS;
use super::super::{BindError, UdpConfig, UdpSockets};
use super::*;
use crate::Udp as _;

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

/// Returns an IPv4 or IPv6 socket at the loopback address.
fn source_of(is_v6: bool) -> StdSocket {
    StdSocket::bind((if is_v6 { "::1" } else { "127.0.0.1" }, 0)).unwrap()
}

fn source() -> StdSocket {
    StdSocket::bind(("127.0.0.1", 0)).unwrap()
}

/// Returns a data message that carries a number.
fn message(number: u32, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes.max(32)];
    message[0] = 4;
    message[8..12].copy_from_slice(&number.to_be_bytes());
    message
}

fn number(message: &[u8]) -> u32 {
    u32::from_be_bytes(*message[8..].first_chunk().unwrap())
}

/// The number in each datagram, by source port.
type ByPort = HashMap<u16, Vec<u32>>;

/// Receives `datagrams` datagrams.
async fn receive(sockets: &mut UdpSockets, datagrams: usize) -> ByPort {
    let mut buffers = RecvBuffers::new();
    let mut received = ByPort::new();
    while received.values().map(Vec::len).sum::<usize>() < datagrams {
        poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap();
        while let Some(datagram) = buffers.next_datagram() {
            received.entry(datagram.meta.source.port()).or_default().push(number(datagram.bytes));
        }
    }
    received
}

/// Sends a message, and returns the number of the socket that the kernel chose. `sockets` must be empty.
fn lane_of(sockets: &UdpSockets, source: &StdSocket) -> Option<usize> {
    let is_v6 = source.local_addr().unwrap().is_ipv6();
    source.send_to(&message(0, 0), to(sockets, is_v6)).unwrap();
    let (mut buffers, mut stats) = (RecvBuffers::new(), UdpStats::default());
    let family = if is_v6 { &sockets.v6 } else { &sockets.v4 };
    family.as_ref().unwrap().each().position(|socket| {
        recv::recv(socket.io.get_ref().as_fd(), &mut buffers, 1, &mut stats, |_, _| {}).is_ok()
    })
}

fn to(sockets: &UdpSockets, is_v6: bool) -> (&'static str, u16) {
    (if is_v6 { "::1" } else { "127.0.0.1" }, sockets.port())
}

/// Receives until nothing is left, and records every datagram as authentic. Returns the numbers from each
/// port, in order. Calls `after` after each datagram.
async fn numbers(sockets: &mut UdpSockets, after: impl FnMut(&[u32])) -> HashMap<u16, Vec<u32>> {
    numbers_beside_junk(sockets, None, after).await
}

/// Does what [`numbers`] does, but datagrams from the port `junk` are not authentic.
async fn numbers_beside_junk(
    sockets: &mut UdpSockets,
    junk: Option<u16>,
    mut after: impl FnMut(&[u32]),
) -> HashMap<u16, Vec<u32>> {
    let (mut buffers, mut numbers) = (RecvBuffers::new(), HashMap::<u16, Vec<u32>>::new());
    loop {
        // Lets the runtime update the readiness of the sockets, as between turns.
        tokio::task::yield_now().await;
        if poll_fn(|cx| Poll::Ready(sockets.poll_recv(cx, &mut buffers).is_pending())).await {
            return numbers;
        }
        while let Some(datagram) = buffers.next_datagram() {
            let source = datagram.meta.source;
            let of_source = numbers.entry(source.port()).or_default();
            of_source.push(number(datagram.bytes));
            after(of_source);
            if junk != Some(source.port()) {
                sockets.record_authentic(source, cost_of(datagram.bytes.len(), 1));
            }
        }
    }
}

fn send_numbers(from: &StdSocket, to: (&str, u16), numbers: std::ops::Range<u32>, bytes: usize) {
    for number in numbers {
        from.send_to(&message(number, bytes), to).unwrap();
    }
}

#[test]
fn sources_spread_over_the_shared_lanes_and_stay_where_they_are() {
    in_namespace("sources_spread_over_the_shared_lanes_and_stay_where_they_are", async || {
        let sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        for is_v6 in [false, true] {
            let mut sources = [0; SOCKETS];
            for _ in 0..256 {
                let source = source_of(is_v6);
                let lane = lane_of(&sockets, &source).unwrap();
                assert_eq!(lane_of(&sockets, &source), Some(lane));
                sources[lane] += 1;
            }
            assert!(sources[..SHARED].iter().all(|count| (8..96).contains(count)), "{sources:?}");
            assert_eq!(sources[SHARED..], [0; SOCKETS - SHARED]);
        }
    });
}

#[test]
fn a_source_that_fills_its_lane_gets_one_of_its_own_and_stays_in_order() {
    in_namespace("a_source_that_fills_its_lane_gets_one_of_its_own_and_stays_in_order", async || {
        for is_v6 in [false, true] {
            let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
            let to = to(&sockets, is_v6);
            assert!(numbers(&mut sockets, |_| {}).await.is_empty());
            let flood = source_of(is_v6);
            let lane = lane_of(&sockets, &flood).unwrap();
            let other = std::iter::repeat_with(|| source_of(is_v6))
                .find(|other| lane_of(&sockets, other) == Some(lane))
                .unwrap();
            let port = |socket: &StdSocket| socket.local_addr().unwrap().port();

            // The flood continues while it is moved to another lane, and so does a source beside it.
            send_numbers(&flood, to, 0..400, 16_000);
            let mut sent = 400;
            let received = numbers(&mut sockets, |received| {
                if received.len() >= 50 && sent < 800 {
                    send_numbers(&flood, to, sent..sent + 1, 16_000);
                    send_numbers(&other, to, sent..sent + 1, 16);
                    sent += 1;
                }
            })
            .await;
            assert_eq!(sockets.stats().receive_overflows, 0);
            assert_eq!(received[&port(&flood)], (0..800).collect::<Vec<_>>());
            assert_eq!(received[&port(&other)], (400..800).collect::<Vec<_>>());
            assert_eq!(lane_of(&sockets, &flood), Some(SHARED));
            assert_eq!(lane_of(&sockets, &other), Some(lane));

            // From now on, the flood loses datagrams, but no other source does.
            for socket in sockets.each() {
                set_option(socket.io.get_ref(), libc::SOL_SOCKET, libc::SO_RCVBUF, 16_384).unwrap();
            }
            send_numbers(&flood, to, 0..200, 16_000);
            let lost = sockets.stats().receive_overflows;
            assert!(lost > 100);
            send_numbers(&other, to, 0..10, 16);
            assert_eq!(sockets.stats().receive_overflows, lost);
            let received = numbers(&mut sockets, |_| {}).await;
            assert_eq!(received[&port(&other)], (0..10).collect::<Vec<_>>());
            assert_eq!(received[&port(&flood)].len(), 200 - lost as usize);
        }
    });
}

#[test]
fn junk_earns_no_lane_and_keeps_no_peer_from_one() {
    in_namespace("junk_earns_no_lane_and_keeps_no_peer_from_one", async || {
        for is_v6 in [false, true] {
            let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
            let to = to(&sockets, is_v6);
            assert!(numbers(&mut sockets, |_| {}).await.is_empty());
            let junk = source_of(is_v6);
            let lane = lane_of(&sockets, &junk).unwrap();
            let peer = std::iter::repeat_with(|| source_of(is_v6))
                .find(|other| lane_of(&sockets, other) == Some(lane))
                .unwrap();
            let port = |socket: &StdSocket| socket.local_addr().unwrap().port();

            send_numbers(&junk, to, 0..6000, 32);
            numbers_beside_junk(&mut sockets, Some(port(&junk)), |_| {}).await;
            assert_eq!(lane_of(&sockets, &junk), Some(lane));

            // A hundred messages of junk for each message of the peer.
            for number in 0..100 {
                send_numbers(&junk, to, 100 * number..100 * (number + 1), 32);
                send_numbers(&peer, to, number..number + 1, 32);
            }
            let received = numbers_beside_junk(&mut sockets, Some(port(&junk)), |_| {}).await;
            assert_eq!(sockets.stats().receive_overflows, 0);
            assert_eq!(received[&port(&peer)], (0..100).collect::<Vec<_>>());
            assert_eq!(lane_of(&sockets, &peer), Some(SHARED));
            assert_eq!(lane_of(&sockets, &junk), Some(lane));
        }
    });
}

#[test]
fn a_lane_of_its_own_goes_to_the_next_one_once_it_is_at_rest() {
    in_namespace("a_lane_of_its_own_goes_to_the_next_one_once_it_is_at_rest", async || {
        let sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let first = sockets.v4.as_ref().unwrap().first().io.get_ref();
        let mut steering = Steering::attach(first, false, Key::random()).unwrap();
        let sources: Vec<_> = (0..=OWN).map(|_| source()).collect();
        let mut give = |source: &StdSocket, received| {
            steering.had(SHARED + 3, received - 1);
            steering.give(first, source.local_addr().unwrap(), received, |lane| lane != SHARED + 5).unwrap()
        };
        for (place, source) in sources[..OWN].iter().enumerate() {
            assert_eq!(give(source, 1000), Some(SHARED + place));
            assert_eq!(give(source, 1000), None, "it has one");
        }
        for (place, source) in sources[..OWN].iter().enumerate() {
            assert_eq!(lane_of(&sockets, source), Some(SHARED + place));
        }
        assert_eq!(give(&sources[OWN], 2000), None, "all are in use");
        assert!(lane_of(&sockets, &sources[OWN]).unwrap() < SHARED);
        let later = 1000 + (1 << 30);
        assert_eq!(give(&sources[OWN], later), Some(SHARED));
        assert_eq!(lane_of(&sockets, &sources[OWN]), Some(SHARED));
        assert!(lane_of(&sockets, &sources[0]).unwrap() < SHARED, "who had it is where it was before");
        // The lane in use keeps its source, and so does the lane that was not empty.
        let more: Vec<_> = (1..OWN).map(|_| source()).collect();
        let given: Vec<_> = more.iter().map(|source| give(source, later)).collect();
        assert_eq!(given[..3], [Some(SHARED + 1), Some(SHARED + 2), Some(SHARED + 4)]);
        assert_eq!(given[3], Some(SHARED + 6));
        assert_eq!(given.last(), Some(&None));
    });
}

#[test]
fn what_is_left_in_a_lane_of_its_own_comes_out_first_after_a_restart() {
    in_namespace("what_is_left_in_a_lane_of_its_own_comes_out_first_after_a_restart", async || {
        let mut before = UdpSockets::bind(&UdpConfig::default()).unwrap();
        assert!(numbers(&mut before, |_| {}).await.is_empty());
        let (flood, to) = (source(), to(&before, false));
        let config = UdpConfig { port: before.port(), ..UdpConfig::default() };
        send_numbers(&flood, to, 0..200, 16_000);
        numbers(&mut before, |_| {}).await;
        assert_eq!(lane_of(&before, &flood), Some(SHARED));
        send_numbers(&flood, to, 0..100, 100);
        let descriptors = before.descriptors().unwrap();
        drop(before);

        let mut after = UdpSockets::adopt(descriptors, &config).unwrap();
        send_numbers(&flood, to, 100..200, 100);
        let received = numbers(&mut after, |_| {}).await;
        assert_eq!(received[&flood.local_addr().unwrap().port()], (0..200).collect::<Vec<_>>());
        assert!(lane_of(&after, &flood).unwrap() < SHARED);
    });
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
            flood.send_to(&message(0, 1000), to).unwrap();
        }
        assert!(sockets.stats().receive_overflows > 100);
        let held = 200 - sockets.stats().receive_overflows as usize;
        let others: Vec<_> = (0..64).map(|_| source()).collect();
        for other in &others {
            other.send_to(&message(1, 100), to).unwrap();
        }
        let lost = sockets.stats().receive_overflows as usize - (200 - held);
        // An eighth of the sources share the lane of the flood. That half of 64 do is next to impossible.
        assert!((1..32).contains(&lost), "{lost} of 64 lost everything to the flood");
        assert_eq!(receive(&mut sockets, held + 64 - lost).await.len(), 1 + 64 - lost);
    });
}

#[test]
fn who_sends_long_datagrams_gets_no_more_bytes_than_who_sends_short_ones() {
    in_namespace("who_sends_long_datagrams_gets_no_more_bytes_than_who_sends_short_ones", async || {
        let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let to = ("127.0.0.1", sockets.port());
        // No messages wait from before the lanes existed.
        let mut buffers = RecvBuffers::new();
        assert!(poll_fn(|cx| Poll::Ready(sockets.poll_recv(cx, &mut buffers).is_pending())).await);
        let long = source();
        let lane = lane_of(&sockets, &long);
        let short = std::iter::repeat_with(source).find(|other| lane_of(&sockets, other) != lane).unwrap();
        for _ in 0..100 {
            long.send_to(&message(0, 16_000), to).unwrap();
        }
        for _ in 0..800 {
            short.send_to(&message(0, 2000), to).unwrap();
        }
        assert_eq!(sockets.stats().receive_overflows, 0);
        // Counts while both are known to have messages waiting, with a few buffers free at a time as in a
        // busy event loop.
        let (mut bytes, mut all) = (HashMap::<u16, usize>::new(), 0);
        while all < 1_600_000 {
            // Lets the runtime update the readiness of the sockets, as between turns.
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
fn who_shares_a_lane_gets_as_much_as_who_has_one_alone() {
    in_namespace("who_shares_a_lane_gets_as_much_as_who_has_one_alone", async || {
        let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let to = to(&sockets, false);
        assert!(numbers(&mut sockets, |_| {}).await.is_empty());
        let alone = source();
        let lane = lane_of(&sockets, &alone);
        let mut together =
            vec![std::iter::repeat_with(source).find(|one| lane_of(&sockets, one) != lane).unwrap()];
        let shared = lane_of(&sockets, &together[0]);
        while together.len() < 5 {
            together.extend(Some(source()).filter(|other| lane_of(&sockets, other) == shared));
        }
        for number in 0..150 {
            for source in together.iter().chain([&alone, &alone]) {
                send_numbers(source, to, number..number + 1, 2000);
            }
        }
        // While both lanes have messages waiting, with a few buffers free at a time as in a busy event loop.
        let (mut buffers, mut bytes) = (RecvBuffers::new(), HashMap::<u16, usize>::new());
        while bytes.values().sum::<usize>() < 800_000 {
            tokio::task::yield_now().await;
            poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap();
            while buffers.filled() > RecvBuffers::COUNT - 4
                && let Some(received) = buffers.next()
            {
                *bytes.entry(received.meta.source.port()).or_default() += received.bytes.len();
            }
        }
        let of = |socket: &StdSocket| bytes[&socket.local_addr().unwrap().port()];
        let each = together.iter().map(of).sum::<usize>() / together.len();
        assert!(of(&alone) < 2 * each, "{} alone, {each} each together", of(&alone));
    });
}

#[test]
fn who_sends_from_many_ports_does_not_get_all_turns() {
    in_namespace("who_sends_from_many_ports_does_not_get_all_turns", async || {
        let mut sockets = UdpSockets::bind(&UdpConfig::default()).unwrap();
        let to = to(&sockets, false);
        assert!(numbers(&mut sockets, |_| {}).await.is_empty());
        let alone = source();
        let lane = lane_of(&sockets, &alone);
        let others: Vec<_> = (0..600).map(|_| source()).collect();
        let shared = (0..SHARED).find(|other| Some(*other) != lane);
        let many: Vec<_> = others.iter().filter(|other| lane_of(&sockets, other) == shared).collect();
        assert!(many.len() > 40, "{}", many.len());
        for number in 0..60 {
            many.iter().for_each(|source| send_numbers(source, to, number..number + 1, 148));
        }
        send_numbers(&alone, to, 0..800, 148);
        // While both lanes have messages waiting, with a few buffers free at a time as in a busy event loop.
        let (mut buffers, mut of_alone) = (RecvBuffers::new(), 0);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
            while buffers.has_room() {
                poll_fn(|cx| sockets.poll_recv(cx, &mut buffers)).await.unwrap();
            }
            let received = buffers.next().unwrap();
            of_alone += usize::from(received.meta.source.port() == alone.local_addr().unwrap().port());
        }
        assert_eq!(sockets.stats().receive_overflows, 0);
        // A fifth: the other lane gets four turns for each turn of this lane, not a turn for each of its
        // sources.
        assert!((150..300).contains(&of_alone), "{of_alone} of 1000");
    });
}

#[test]
fn what_a_source_sent_before_there_were_lanes_comes_out_first() {
    in_namespace("what_a_source_sent_before_there_were_lanes_comes_out_first", async || {
        let first = bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
        let port = first.local_addr().unwrap().as_socket().unwrap().port();
        let sources: Vec<_> = (0..16).map(|_| source()).collect();
        let send = |numbers: std::ops::Range<u32>| {
            for number in numbers {
                for source in &sources {
                    source.send_to(&message(number, 0), ("127.0.0.1", port)).unwrap();
                }
            }
        };
        send(0..12);
        let config = UdpConfig { port, ..UdpConfig::default() };
        let mut sockets = UdpSockets::adopt(vec![first.into()], &config).unwrap();
        assert_eq!(sockets.v4.as_ref().unwrap().each().count(), SOCKETS);
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
            source.send_to(&message(0, 0), ("127.0.0.1", config.port)).unwrap();
        }
        let descriptors = before.descriptors().unwrap();
        assert_eq!(descriptors.len(), 2 * SOCKETS);
        drop(before);
        let mut after = UdpSockets::adopt(descriptors, &config).unwrap();
        assert_eq!(after.each().count(), 2 * SOCKETS);
        for source in &sources {
            source.send_to(&message(1, 0), ("127.0.0.1", config.port)).unwrap();
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
        // A child process that another test has just forked may hold the port for a moment.
        drop(sockets);
        lab::wait_until_ok(|| UdpSockets::bind(&config).map(drop).map_err(|error| error.to_string()));
    });
}
