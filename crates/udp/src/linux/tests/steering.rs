//! The socket of the group that the kernel chooses for a datagram, by the attached program.

use std::collections::HashSet;
use std::io::Read as _;
use std::task::Poll;

use weft_tunnel::RecvMeta;

use super::super::family::Family;
use super::super::program::INITIATIONS;
use super::super::steering::{DATA, DRAIN, HANDSHAKES, MOST_RECEIVERS, SOCKETS};
use super::*;
use crate::{Descriptor, Half};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Data,
    Handshakes,
    Initiations,
    Drain,
}

pub(super) fn family(sockets: &UdpSockets, is_v6: bool) -> &Family {
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
    // On a busy machine the kernel delivers over loopback a moment after the send.
    loop {
        if family.junk_dropped() > junk_before {
            assert_eq!(family.junk_dropped(), junk_before + 1);
            return DRAIN;
        }
        let mut received = family.each().map(|socket| socket.io.get_ref().read(&mut [0]).is_ok());
        if let Some(number) = received.position(|received| received) {
            return number;
        }
        std::thread::yield_now();
    }
}

fn place(family: &Family, source: &StdSocket, datagram: &[u8]) -> Role {
    let junk_before = family.junk_dropped();
    source.send(datagram).unwrap();
    match number_of_last(family, junk_before) {
        DATA => Role::Data,
        HANDSHAKES => Role::Handshakes,
        INITIATIONS => Role::Initiations,
        DRAIN => Role::Drain,
        other => panic!("socket {other}"),
    }
}

/// An independent model of the program. `receivers` are the indices that pass, if the list is on.
fn expected(datagram: &[u8], is_strict: bool, receivers: Option<&HashSet<u32>>) -> Role {
    let Some(header) = datagram.first_chunk::<4>().filter(|_| datagram.len() >= 32) else {
        return Role::Drain;
    };
    let (exact, index_at) = match *header {
        [1, 0, 0, 0] => (148, None),
        [2, 0, 0, 0] => (92, Some(8)),
        [3, 0, 0, 0] => (64, Some(4)),
        [4, 0, 0, 0] => (0, Some(4)),
        _ => return Role::Drain,
    };
    let is_known = index_at.is_none_or(|at| {
        let index = u32::from_le_bytes(*datagram[at..].first_chunk().unwrap());
        receivers.is_none_or(|receivers| receivers.contains(&index))
    });
    match exact {
        0 if is_known => Role::Data,
        0 => Role::Drain,
        exact if datagram.len().is_multiple_of(exact) && is_known => match header[0] {
            1 if datagram[132..148] == [0; 16] => Role::Initiations,
            _ => Role::Handshakes,
        },
        exact if datagram.len() > exact && datagram.len() % exact >= 32 && !is_strict => Role::Data,
        _ => Role::Drain,
    }
}

/// Returns a message of a type, with a receiver index if the type has one.
pub(super) fn message(kind: u8, index: u32, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes.max(12)];
    message[0] = kind;
    let at = if kind == 2 { 8 } else { 4 };
    message[at..at + 4].copy_from_slice(&index.to_le_bytes());
    message.truncate(bytes);
    message
}

/// Returns an initiation with a cookie: one byte of its mac2 is not zero.
pub(super) fn with_cookie(byte: usize) -> Vec<u8> {
    let mut initiation = message(1, 0, 148);
    initiation[132 + byte] = 1;
    initiation
}

#[test]
fn each_type_has_its_socket_and_what_is_no_message_is_counted_apart_from_overflows() {
    in_namespace(async || {
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
                for datagram in kinds.chain(reserved).chain((0..16).map(with_cookie)) {
                    let expected = expected(&datagram, is_filtering, known.as_ref());
                    junk += u64::from(expected == Role::Drain);
                    let (kind, bytes) = (datagram.get(..4), datagram.len());
                    assert_eq!(place(family, &source, &datagram), expected, "{kind:?}, {bytes} bytes");
                }
            }
            let stats = sockets.stats();
            assert_eq!((stats.junk_dropped - before, stats.receive_overflows), (junk, 0));
        }
    });
}

#[test]
fn what_was_counted_as_junk_stays_counted_with_another_port() {
    in_namespace(async || {
        let mut sockets = open();
        for is_v6 in [false, true] {
            source_to(&sockets, is_v6).send(b"junk").unwrap();
        }
        sockets.rebind(Some(0), None).unwrap();
        assert_eq!((sockets.stats().junk_dropped, sockets.stats().receive_overflows), (2, 0));
    });
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
    in_namespace(async || {
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
    });
}

#[test]
fn handshake_messages_wake_the_one_that_waits_for_them() {
    in_namespace(async || {
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
    });
}

/// Returns pseudo-random numbers.
pub(super) fn numbers(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed | 1), |x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 17);
        Some(x ^ (x << 5))
    })
}

#[test]
fn only_messages_with_known_receiver_indices_pass_while_the_list_is_on() {
    in_namespace(async || {
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
            assert_eq!(place(self::family(&sockets, is_v6), &source, &message(4, 1234, 32)), Role::Data);
        }
        assert_eq!(sockets.stats().receive_overflows, 0);
    });
}

#[test]
fn half_of_the_sources_may_ask_without_a_cookie_and_all_may_with_one() {
    in_namespace(async || {
        let mut sockets = open();
        for is_v6 in [false, true] {
            let sources: Vec<_> = (0..64).map(|_| source_to(&sockets, is_v6)).collect();
            let mut heard = Vec::new();
            for half in [Half::Lower, Half::Upper] {
                sockets.let_half_ask(Some(half));
                let family = family(&sockets, is_v6);
                for source in &sources {
                    heard.push(place(family, source, &message(1, 7, 148)) == Role::Initiations);
                    let proven = with_cookie(heard.len() % 16);
                    assert_eq!(place(family, source, &proven), Role::Handshakes);
                    for (kind, bytes, expected) in
                        [(2, 92, Role::Handshakes), (3, 64, Role::Handshakes), (4, 148, Role::Data)]
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
                assert_eq!(place(family, source, &message(1, 7, 148)), Role::Initiations);
            }
        }
    });
}

#[test]
fn with_more_indices_than_fit_all_pass() {
    in_namespace(async || {
        let mut sockets = open();
        let list: Vec<u32> = numbers(5).take(MOST_RECEIVERS + 1).collect();
        assert!(sockets.let_pass(Some(&list)), "what has the wrong length is dropped");
        let source = source_to(&sockets, false);
        let family = family(&sockets, false);
        assert_eq!(place(family, &source, &message(4, 77, 100)), Role::Data);
        assert_eq!(place(family, &source, &message(1, 77, 180)), Role::Drain);
    });
}

#[test]
fn the_longest_program_is_taken_and_tells_messages_apart() {
    in_namespace(async || {
        let mut sockets = open();
        let list: Vec<u32> = numbers(3).take(MOST_RECEIVERS).collect();
        sockets.let_half_ask(Some(Half::Upper));
        assert!(sockets.let_pass(Some(&list)));
        for is_v6 in [false, true] {
            let (family, source) = (family(&sockets, is_v6), source_to(&sockets, is_v6));
            for (index, expected) in
                [(list[0], Role::Data), (list[MOST_RECEIVERS - 1], Role::Data), (1, Role::Drain)]
            {
                assert_eq!(place(family, &source, &message(4, index, 60)), expected);
            }
            assert_eq!(place(family, &source, &with_cookie(0)), Role::Handshakes);
        }
    });
}

#[test]
fn a_flood_of_initiations_costs_neither_data_nor_those_who_have_a_cookie() {
    in_namespace(async || {
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
            let proven = [with_cookie(3), message(2, 9, 92), message(3, 9, 64)];
            proven.iter().for_each(|message| assert!(peer.send(message).is_ok()));
            let received = receive(&mut sockets, 100).await;
            let sent: Vec<_> = (0..100).map(|number| message(4, number, 1000)).collect();
            assert!(received.iter().map(|(_, bytes)| bytes).eq(&sent));
            let stats = sockets.stats();
            assert_eq!((stats.receive_overflows, stats.junk_dropped), (lost, 0));
            // They are among the first messages received, and the flood's that fit the buffer follow.
            let received: Vec<_> =
                handshakes(&mut sockets, 1000).await.into_iter().map(|(_, message)| message).collect();
            assert_eq!(received.iter().filter(|message| proven.contains(message)).count(), 3);
            assert!(received[..100].iter().filter(|message| proven.contains(message)).count() == 3);
            sockets = open();
        }
    });
}

/// Returns the sockets as they are left to the next process: those of IPv4 alone.
fn v4_descriptors(sockets: &UdpSockets) -> (Vec<Descriptor>, UdpConfig) {
    let config = UdpConfig { port: sockets.port(), ..UdpConfig::default() };
    (family(sockets, false).descriptors().unwrap(), config)
}

#[test]
fn a_whole_set_is_taken_over_with_what_it_holds() {
    in_namespace(async || {
        let mut before = open();
        let source = source_to(&before, false);
        source.send(&message(4, 0, 100)).unwrap();
        source.send(&message(1, 0, 148)).unwrap();
        // A list of the previous process is no longer in force, even if that process could not remove it.
        before.let_pass(Some(&[8]));
        let (descriptors, config) = v4_descriptors(&before);
        std::mem::forget(before);
        let mut after = UdpSockets::adopt(descriptors, &config).unwrap();
        assert_eq!(family(&after, false).each().count(), SOCKETS);
        source.send(&message(4, 1, 100)).unwrap();
        let received = receive(&mut after, 2).await;
        assert_eq!(received.iter().map(|(_, bytes)| bytes[4]).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(handshakes(&mut after, 1).await.len(), 1);
        let family = family(&after, false);
        assert_eq!(place(family, &source, &message(9, 0, 100)), Role::Drain);
    });
}

#[test]
fn a_list_does_not_outlive_the_one_who_keeps_it_up_to_date() {
    in_namespace(async || {
        let mut sockets = open();
        let source = source_to(&sockets, false);
        let (descriptors, _) = v4_descriptors(&sockets);
        assert!(sockets.let_pass(Some(&[8])));
        drop(sockets);
        source.send(&message(4, 7, 100)).unwrap();
        let has_something = |descriptor: Descriptor| StdSocket::from(descriptor).recv(&mut [0; 200]).is_ok();
        assert_eq!(descriptors.into_iter().map(has_something).filter(|got| *got).count(), 1);
    });
}

/// Counts the datagrams that wait in the sockets that data is read from.
pub(super) async fn count_waiting(sockets: &mut UdpSockets) -> usize {
    let (mut buffers, mut count) = (RecvBuffers::default(), 0);
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

#[test]
fn of_an_incomplete_set_every_socket_is_read_and_none_takes_nothing() {
    in_namespace(async || {
        for missing in [DRAIN, HANDSHAKES, INITIATIONS, DATA] {
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
    });
}
