//! The socket of the group that the kernel chooses for a datagram, by the attached program.

use std::collections::HashSet;

use super::super::super::Half;
use super::super::family::Family;
use super::super::lanes::{LANES, SHARED};
use super::super::program::Key;
use super::super::steering::{DRAIN, HANDSHAKES, MOST_RECEIVERS, SOCKETS, Steering};
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Lane,
    Handshakes,
    Drain,
}

fn family(sockets: &UdpSockets, is_v6: bool) -> &Family {
    if is_v6 { sockets.v6.as_ref() } else { sockets.v4.as_ref() }.unwrap()
}

/// Returns an IPv4 or IPv6 socket that is connected to `sockets`.
fn source_to(sockets: &UdpSockets, is_v6: bool) -> StdSocket {
    let address = if is_v6 { V6 } else { V4 };
    let source = StdSocket::bind((address, 0)).unwrap();
    source.connect((address, sockets.port())).unwrap();
    source
}

/// Returns the number of the socket that got the last datagram: the only socket that holds a datagram, or the
/// drain.
fn number_of_last(family: &Family, junk_before: u64) -> usize {
    if family.junk_dropped() > junk_before {
        assert_eq!(family.junk_dropped(), junk_before + 1);
        return DRAIN;
    }
    let mut buffers = RecvBuffers::new();
    let mut stats = UdpStats::default();
    let mut has_something = family.each().map(|socket| {
        recv::recv(socket.io.get_ref().as_fd(), &mut buffers, 1, &mut stats, |_, _| {}).is_ok()
    });
    has_something.position(|has_something| has_something).unwrap()
}

fn place(family: &Family, source: &StdSocket, datagram: &[u8]) -> Place {
    let junk_before = family.junk_dropped();
    source.send(datagram).unwrap();
    match number_of_last(family, junk_before) {
        0..SHARED => Place::Lane,
        HANDSHAKES => Place::Handshakes,
        DRAIN => Place::Drain,
        other => panic!("socket {other}"),
    }
}

/// An independent model of the program. `receivers` are the indices that pass, if the list is on.
fn expected(datagram: &[u8], is_strict: bool, receivers: Option<&HashSet<u32>>) -> Place {
    let Some(header) = datagram.first_chunk::<4>().filter(|_| datagram.len() >= 32) else {
        return Place::Drain;
    };
    let (exact, index_at) = match *header {
        [1, 0, 0, 0] => (148, None),
        [2, 0, 0, 0] => (92, Some(8)),
        [3, 0, 0, 0] => (64, Some(4)),
        [4, 0, 0, 0] => (0, Some(4)),
        _ => return Place::Drain,
    };
    let is_known = index_at.is_none_or(|at| {
        let index = u32::from_le_bytes(*datagram[at..].first_chunk().unwrap());
        receivers.is_none_or(|receivers| receivers.contains(&index))
    });
    match exact {
        0 if is_known => Place::Lane,
        0 => Place::Drain,
        exact if datagram.len().is_multiple_of(exact) && is_known => Place::Handshakes,
        exact if datagram.len() > exact && datagram.len() % exact >= 32 && !is_strict => Place::Lane,
        _ => Place::Drain,
    }
}

/// Returns a message of a type, with a receiver index if the type has one.
fn message(kind: u8, index: u32, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes.max(12)];
    message[0] = kind;
    let at = if kind == 2 { 8 } else { 4 };
    message[at..at + 4].copy_from_slice(&index.to_le_bytes());
    message.truncate(bytes);
    message
}

#[test]
fn each_type_has_its_socket_and_what_is_no_message_is_counted_apart_from_overflows() {
    let test = "each_type_has_its_socket_and_what_is_no_message_is_counted_apart_from_overflows";
    in_namespace(
        test,
        |_| (),
        async || {
            let mut sockets = open();
            for is_filtering in [false, true] {
                assert_eq!(sockets.let_pass(is_filtering.then_some(&[7])), is_filtering);
                let known = is_filtering.then(|| HashSet::from([7]));
                let mut junk = 0;
                let before = sockets.stats().junk_dropped;
                for is_v6 in [false, true] {
                    let (family, source) = (family(&sockets, is_v6), source_to(&sockets, is_v6));
                    let kinds = (0..=5).flat_map(|kind| (0..=330).map(move |bytes| message(kind, 7, bytes)));
                    let reserved = (1..4).flat_map(|at| {
                        [(1, 148), (2, 92), (3, 64), (4, 200)].map(|(kind, bytes)| {
                            let mut message = message(kind, 7, bytes);
                            message[at] = 1;
                            message
                        })
                    });
                    for datagram in kinds.chain(reserved) {
                        let expected = expected(&datagram, is_filtering, known.as_ref());
                        junk += u64::from(expected == Place::Drain);
                        let (kind, bytes) = (datagram.get(..4), datagram.len());
                        assert_eq!(place(family, &source, &datagram), expected, "{kind:?}, {bytes} bytes");
                    }
                }
                let stats = sockets.stats();
                assert_eq!((stats.junk_dropped - before, stats.receive_overflows), (junk, 0));
            }
        },
    );
}

#[test]
fn what_was_counted_as_junk_stays_counted_with_another_port() {
    in_namespace(
        "what_was_counted_as_junk_stays_counted_with_another_port",
        |_| (),
        async || {
            let mut sockets = open();
            for is_v6 in [false, true] {
                source_to(&sockets, is_v6).send(b"junk").unwrap();
            }
            sockets.rebind(Some(0), None).unwrap();
            assert_eq!((sockets.stats().junk_dropped, sockets.stats().receive_overflows), (2, 0));
        },
    );
}

/// Receives `count` handshake messages. Returns each with the length of the joined message that contained it.
async fn handshakes(sockets: &mut UdpSockets, count: usize) -> Vec<(usize, Vec<u8>)> {
    let (mut received, mut buffers) = (Vec::new(), RecvBuffers::for_handshakes());
    poll_fn(|cx| {
        while received.len() < count {
            std::task::ready!(sockets.poll_recv_handshakes(cx, &mut buffers)).unwrap();
            while let Some(mut message) = buffers.next() {
                let RecvMeta { len, stride, .. } = message.meta;
                received.extend(message.whole().chunks(stride).map(|datagram| (len, datagram.to_vec())));
            }
        }
        Poll::Ready(())
    })
    .await;
    received
}

#[test]
fn joined_datagrams_go_by_the_first_of_them() {
    in_namespace(
        "joined_datagrams_go_by_the_first_of_them",
        |_| (),
        async || {
            let (mut a, mut b) = (open(), open());
            for address in [V4, V6] {
                for (kind, bytes) in [(1, 148), (2, 92), (3, 64)] {
                    let batch = message(kind, 7, bytes).repeat(20);
                    send(&mut a, to(address, b.port(), bytes, &batch)).await.unwrap();
                    let received = handshakes(&mut b, 20).await;
                    assert!(received.iter().all(|(joined, _)| *joined == 20 * bytes), "they came joined");
                    assert!(received.iter().all(|(_, datagram)| *datagram == message(kind, 7, bytes)));
                }
                // Shorter data right behind a handshake message of the same peer is not lost, unless junk
                // arrives.
                for is_filtering in [false, true] {
                    b.let_pass(is_filtering.then_some(&[7]));
                    let junk = b.stats().junk_dropped;
                    let batch = [message(1, 0, 148), message(4, 7, 48)].concat();
                    send(&mut a, to(address, b.port(), 148, &batch)).await.unwrap();
                    if is_filtering {
                        assert_eq!(b.stats().junk_dropped, junk + 1);
                    } else {
                        assert_in_order(&receive(&mut b, 2).await, &batch, 148);
                    }
                    let batch = message(4, 7, 1000).repeat(7);
                    send(&mut a, to(address, b.port(), 1000, &batch)).await.unwrap();
                    assert_in_order(&receive(&mut b, 7).await, &batch, 1000);
                }
                b.let_pass(None);
            }
        },
    );
}

#[test]
fn handshake_messages_wake_the_one_that_waits_for_them() {
    in_namespace(
        "handshake_messages_wake_the_one_that_waits_for_them",
        |_| (),
        async || {
            let mut sockets = open();
            let [v4, v6] = [false, true].map(|is_v6| source_to(&sockets, is_v6));
            for round in 0..3 {
                for source in [&v4, &v6] {
                    poll_fn(|cx| {
                        let mut buffers = RecvBuffers::for_handshakes();
                        assert!(sockets.poll_recv_handshakes(cx, &mut buffers).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                    source.send(&message(1, round, 148)).unwrap();
                    assert_eq!(handshakes(&mut sockets, 1).await, [(148, message(1, round, 148))]);
                }
            }
        },
    );
}

/// Returns pseudo-random numbers.
fn numbers(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed | 1), |x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 17);
        Some(x ^ (x << 5))
    })
}

#[test]
fn only_messages_with_known_receiver_indices_pass_while_the_list_is_on() {
    in_namespace(
        "only_messages_with_known_receiver_indices_pass_while_the_list_is_on",
        |_| (),
        async || {
            let mut sockets = open();
            for (is_v6, count) in [0, 1, 2, 7, 8, 9, 17, 100, 400, MOST_RECEIVERS]
                .into_iter()
                .flat_map(|count| [(false, count), (true, count)])
            {
                let list: Vec<u32> = [u32::MAX, 0].into_iter().chain(numbers(99)).take(count).collect();
                assert!(sockets.let_pass(Some(&list)));
                let known: HashSet<u32> = list.iter().copied().collect();
                let (family, source) = (family(&sockets, is_v6), source_to(&sockets, is_v6));
                let near = list.iter().flat_map(|index| [index.wrapping_add(1), index.swap_bytes()]);
                let others = near.chain(numbers(7).take(50));
                for index in list.iter().copied().chain(others.collect::<Vec<_>>()) {
                    for datagram in [
                        message(4, index, 100),
                        message(3, index, 64),
                        message(2, index, 92),
                        message(1, index, 148),
                    ] {
                        let expected = expected(&datagram, true, Some(&known));
                        let kind = datagram[0];
                        let place = place(family, &source, &datagram);
                        assert_eq!(place, expected, "{kind}, {index:#x} of {count}");
                    }
                }
                assert!(!sockets.let_pass(None));
                assert_eq!(place(self::family(&sockets, is_v6), &source, &message(4, 1234, 32)), Place::Lane);
            }
            assert_eq!(sockets.stats().receive_overflows, 0);
        },
    );
}

#[test]
fn half_of_the_sources_may_ask_without_a_cookie_and_all_may_with_one() {
    in_namespace(
        "half_of_the_sources_may_ask_without_a_cookie_and_all_may_with_one",
        |_| (),
        async || {
            let mut sockets = open();
            for is_v6 in [false, true] {
                let sources: Vec<_> = (0..64).map(|_| source_to(&sockets, is_v6)).collect();
                let mut heard = Vec::new();
                for half in [Half::Lower, Half::Upper] {
                    sockets.let_half_ask(Some(half));
                    let family = family(&sockets, is_v6);
                    for source in &sources {
                        let mut asking = message(1, 7, 148);
                        heard.push(place(family, source, &asking) == Place::Handshakes);
                        let byte = 132 + heard.len() % 16;
                        asking[byte] = 1;
                        assert_eq!(
                            place(family, source, &asking),
                            Place::Handshakes,
                            "mac2 is in byte {byte}"
                        );
                        for (kind, bytes, expected) in
                            [(2, 92, Place::Handshakes), (3, 64, Place::Handshakes), (4, 148, Place::Lane)]
                        {
                            assert_eq!(place(family, source, &message(kind, 7, bytes)), expected, "{kind}");
                        }
                    }
                }
                let (lower, upper) = heard.split_at(sources.len());
                assert!(lower.iter().zip(upper).all(|(lower, upper)| lower != upper), "each in one half");
                let count = lower.iter().filter(|heard| **heard).count();
                assert!((8..=56).contains(&count), "{count} of 64 are in the lower half");
                sockets.let_half_ask(None);
                let family = family(&sockets, is_v6);
                for source in &sources {
                    assert_eq!(place(family, source, &message(1, 7, 148)), Place::Handshakes);
                }
            }
        },
    );
}

#[test]
fn with_more_indices_than_fit_all_pass() {
    in_namespace(
        "with_more_indices_than_fit_all_pass",
        |_| (),
        async || {
            let mut sockets = open();
            let list: Vec<u32> = numbers(5).take(MOST_RECEIVERS + 1).collect();
            assert!(sockets.let_pass(Some(&list)), "what has the wrong length is dropped");
            let source = source_to(&sockets, false);
            let family = family(&sockets, false);
            assert_eq!(place(family, &source, &message(4, 77, 100)), Place::Lane);
            assert_eq!(place(family, &source, &message(1, 77, 180)), Place::Drain);
        },
    );
}

#[test]
fn the_longest_program_is_taken_with_every_lane_in_use() {
    in_namespace(
        "the_longest_program_is_taken_with_every_lane_in_use",
        |_| (),
        async || {
            let sockets = open();
            for is_v6 in [false, true] {
                let family = family(&sockets, is_v6);
                let first = family.first().io.get_ref();
                let key = Key::random();
                let mut steering = Steering::attach(first, is_v6, key).unwrap();
                let list: Vec<u32> = numbers(3).take(MOST_RECEIVERS).collect();
                steering.let_half_ask(first, Some(Half::Upper)).unwrap();
                steering.let_pass(first, Some(&list)).unwrap();
                let sources: Vec<_> = (SHARED..LANES).map(|_| source_to(&sockets, is_v6)).collect();
                for (source, lane) in sources.iter().zip(SHARED..) {
                    let address = source.local_addr().unwrap();
                    let given = steering.give(first, address, 0, |_| true).unwrap();
                    assert_eq!((given, steering.shared_lane(address)), (Some(lane), None));
                }
                for (source, lane) in sources.iter().zip(SHARED..) {
                    for (index, expected) in [(list[0], lane), (list[MOST_RECEIVERS - 1], lane), (1, DRAIN)] {
                        let junk = family.junk_dropped();
                        source.send(&message(4, index, 60)).unwrap();
                        assert_eq!(number_of_last(family, junk), expected);
                    }
                }
                for _ in 0..100 {
                    let source = source_to(&sockets, is_v6);
                    let address = source.local_addr().unwrap();
                    source.send(&message(4, list[1], 60)).unwrap();
                    let lane = number_of_last(family, family.junk_dropped());
                    assert_eq!((lane, Some(lane)), (key.shared_lane(address), steering.shared_lane(address)));
                }
            }
        },
    );
}

#[test]
fn sources_share_lanes_by_a_key_that_differs_from_one_start_to_the_next() {
    let sources: Vec<SocketAddr> = (0..64_u8)
        .flat_map(|host| {
            let v4 = SocketAddr::from(([192, 0, 2, host], 51820));
            let v6 = format!("[2001:db8::{host:x}]:51820").parse().unwrap();
            [v4, v6, SocketAddr::new(v4.ip(), 1000 + u16::from(host))]
        })
        .collect();
    let lanes = |key: Key| -> Vec<usize> { sources.iter().map(|source| key.shared_lane(*source)).collect() };
    let keys: Vec<Key> = (0..50).map(|_| Key::random()).collect();
    let each: Vec<Vec<usize>> = keys.iter().map(|key| lanes(*key)).collect();
    assert_eq!(each.iter().collect::<HashSet<_>>().len(), each.len());
    // Two sources that share a lane with one key do not share it with most other keys: if the key is not
    // known, an eighth of all pairs share a lane.
    let pairs = (0..sources.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let worst =
        pairs.map(|(one, other)| each.iter().filter(|lanes| lanes[one] == lanes[other]).count()).max();
    assert!(worst.unwrap() < 30, "{worst:?} of 50");
}

#[test]
fn a_flood_of_handshakes_costs_data_nothing() {
    in_namespace(
        "a_flood_of_handshakes_costs_data_nothing",
        |_| (),
        async || {
            let mut sockets = open();
            for is_v6 in [false, true] {
                let (flood, peer) = (source_to(&sockets, is_v6), source_to(&sockets, is_v6));
                for _ in 0..8000 {
                    flood.send(&message(1, 0, 148)).unwrap();
                }
                let lost = sockets.stats().receive_overflows;
                assert!(lost > 1000, "{lost}");
                for number in 0..100 {
                    peer.send(&message(4, number, 1000)).unwrap();
                }
                let received = receive(&mut sockets, 100).await;
                let sent: Vec<_> = (0..100).map(|number| message(4, number, 1000)).collect();
                assert!(received.iter().map(|(_, bytes)| bytes).eq(&sent));
                let stats = sockets.stats();
                assert_eq!((stats.receive_overflows, stats.junk_dropped), (lost, 0));
                // The messages that fit the buffer were not lost.
                assert!(handshakes(&mut sockets, 1000).await.len() >= 1000);
                sockets = open();
            }
        },
    );
}

/// Returns the sockets as they are left to the next process: those of IPv4 alone.
fn v4_descriptors(sockets: &UdpSockets) -> (Vec<Descriptor>, UdpConfig) {
    let config = UdpConfig { port: sockets.port(), ..UdpConfig::default() };
    (family(sockets, false).try_clone().unwrap(), config)
}

#[test]
fn a_whole_set_is_taken_over_and_each_source_stays_in_its_lane() {
    in_namespace(
        "a_whole_set_is_taken_over_and_each_source_stays_in_its_lane",
        |_| (),
        async || {
            let mut before = open();
            let sources: Vec<_> = (0..40).map(|_| source_to(&before, false)).collect();
            let lanes = |sockets: &UdpSockets| -> Vec<usize> {
                let lane = |source: &StdSocket| {
                    source.send(&message(4, 7, 100)).unwrap();
                    number_of_last(family(sockets, false), u64::MAX)
                };
                sources.iter().map(lane).collect()
            };
            let expected = lanes(&before);
            // A list of the previous process is no longer in force, even if that process could not remove it.
            before.let_pass(Some(&[8]));
            sources[0].send(&message(1, 0, 148)).unwrap();
            let (descriptors, config) = v4_descriptors(&before);
            std::mem::forget(before);
            let mut after = UdpSockets::adopt(descriptors, &config).unwrap();
            assert_eq!(family(&after, false).each().count(), SOCKETS);
            assert_eq!(lanes(&after), expected);
            assert_eq!(handshakes(&mut after, 1).await.len(), 1);
            let family = family(&after, false);
            assert_eq!(place(family, &sources[0], &message(9, 0, 100)), Place::Drain);
        },
    );
}

#[test]
fn a_list_does_not_outlive_the_one_who_keeps_it_up_to_date() {
    in_namespace(
        "a_list_does_not_outlive_the_one_who_keeps_it_up_to_date",
        |_| (),
        async || {
            let mut sockets = open();
            let source = source_to(&sockets, false);
            let (descriptors, _) = v4_descriptors(&sockets);
            assert!(sockets.let_pass(Some(&[8])));
            drop(sockets);
            source.send(&message(4, 7, 100)).unwrap();
            let has_something =
                |descriptor: Descriptor| StdSocket::from(descriptor).recv(&mut [0; 200]).is_ok();
            assert_eq!(descriptors.into_iter().map(has_something).filter(|got| *got).count(), 1);
        },
    );
}

/// Counts the datagrams that wait in the sockets that data is read from.
async fn count_waiting(sockets: &mut UdpSockets) -> usize {
    let (mut buffers, mut count) = (RecvBuffers::new(), 0);
    loop {
        // Lets the runtime update the readiness of the sockets, as between turns.
        tokio::task::yield_now().await;
        if poll_fn(|cx| Poll::Ready(sockets.poll_recv(cx, &mut buffers).is_pending())).await {
            return count;
        }
        while buffers.next_datagram().is_some() {
            count += 1;
        }
    }
}

/// Returns the lane that an older weft, with lanes only, chose.
fn lane_of_older(source: SocketAddr) -> usize {
    const GOLDEN: u32 = 0x9e37_79b1;
    let mut words: Vec<u32> = match source.ip() {
        IpAddr::V4(address) => vec![address.to_bits()],
        IpAddr::V6(address) => [96, 64, 32, 0].map(|shift| (address.to_bits() >> shift) as u32).to_vec(),
    };
    words.push(source.port().into());
    let product = words.into_iter().fold(0, |sum: u32, word| sum.wrapping_add(word).wrapping_mul(GOLDEN));
    ((product ^ (product >> 15)).wrapping_mul(GOLDEN) >> 29) as usize
}

#[test]
fn the_sixteen_sockets_of_an_older_weft_are_taken_over_with_what_they_hold() {
    in_namespace(
        "the_sixteen_sockets_of_an_older_weft_are_taken_over_with_what_they_hold",
        |_| (),
        async || {
            for is_v6 in [false, true] {
                // Turns a whole set into that of an older weft: nothing but lanes, and its program chooses
                // among them.
                let before = open();
                let config = UdpConfig { port: before.port(), ..UdpConfig::default() };
                let mut descriptors = family(&before, is_v6).try_clone().unwrap();
                let sources: Vec<_> = (0..32).map(|_| source_to(&before, is_v6)).collect();
                drop(before);
                let all: Vec<Socket> = descriptors.drain(..).map(Socket::from).collect();
                all[DRAIN].detach_filter().unwrap();
                let lanes = &all[..LANES];
                let address = |source: &StdSocket| source.local_addr().unwrap();
                // The message of each source is where that program put it.
                for source in &sources {
                    let lane = lane_of_older(address(source));
                    let answer = [libc::sock_filter {
                        code: (libc::BPF_RET | libc::BPF_K) as u16,
                        jt: 0,
                        jf: 0,
                        k: lane as u32,
                    }];
                    super::super::steering::attach(&lanes[0], libc::SO_ATTACH_REUSEPORT_CBPF, &answer)
                        .unwrap();
                    source.send(&message(4, 0, 100)).unwrap();
                }
                sources[0].send(&message(1, 0, 148)).unwrap();
                let descriptors = lanes.iter().map(|socket| socket.try_clone().unwrap().into()).collect();
                // Closes the sockets from the last to the first, so that the numbers of the others do not
                // change.
                all.into_iter().rev().for_each(drop);

                let mut sockets = UdpSockets::adopt(descriptors, &config).unwrap();
                assert_eq!(family(&sockets, is_v6).each().count(), SOCKETS);
                for source in &sources {
                    source.send(&message(4, 1, 100)).unwrap();
                }
                sources[0].send(&message(2, 0, 92)).unwrap();
                sources[0].send(&message(5, 0, 92)).unwrap();
                let received = receive(&mut sockets, 65).await;
                for source in &sources {
                    let of_source = received.iter().filter(|(meta, bytes)| {
                        meta.source.port() == address(source).port() && bytes[0] == 4
                    });
                    assert_eq!(of_source.map(|(_, bytes)| bytes[4]).collect::<Vec<_>>(), [0, 1]);
                }
                let early = received.iter().filter(|(_, bytes)| bytes[0] == 1).count();
                assert_eq!(early, 1, "with data, as it was put there");
                assert_eq!(handshakes(&mut sockets, 1).await, [(92, message(2, 0, 92))]);
                assert_eq!(sockets.stats().junk_dropped, 1);
            }
        },
    );
}

#[test]
fn of_an_incomplete_set_every_socket_is_read_and_none_takes_nothing() {
    in_namespace(
        "of_an_incomplete_set_every_socket_is_read_and_none_takes_nothing",
        |_| (),
        async || {
            for missing in [DRAIN, HANDSHAKES, 3, 0] {
                let before = open();
                let (mut descriptors, config) = v4_descriptors(&before);
                drop(before);
                drop(descriptors.remove(missing));
                let mut sockets = UdpSockets::adopt(descriptors, &config).unwrap();
                let sources: Vec<_> = (0..200).map(|_| source_to(&sockets, false)).collect();
                // Without a program, the kernel does not tell messages apart.
                sockets.let_pass(Some(&[1]));
                for source in &sources {
                    source.send(&message(4, 0, 100)).unwrap();
                    source.send(&message(1, 0, 148)).unwrap();
                    source.send(b"junk").unwrap();
                }
                assert_eq!(count_waiting(&mut sockets).await, 600, "without socket {missing}");
                let stats = sockets.stats();
                assert_eq!((stats.junk_dropped, stats.receive_overflows), (0, 0));
                // The sockets go to the next process as they are.
                let (descriptors, config) = v4_descriptors(&sockets);
                drop(sockets);
                let mut sockets = UdpSockets::adopt(descriptors, &config).unwrap();
                for source in &sources {
                    source.send(&message(4, 0, 100)).unwrap();
                }
                assert_eq!(count_waiting(&mut sockets).await, 200);
            }
        },
    );
}
