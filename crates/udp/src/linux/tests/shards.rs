//! Several packet threads that share a port: which of them a datagram arrives at.

use std::collections::HashSet;
use std::io::Read as _;

use socket2::Socket;

use super::super::program::INITIATIONS;
use super::super::steering::{DATA, DRAIN, HANDSHAKES, MOST_RECEIVERS, sockets_of};
use super::steering::{Role, count_waiting, family, message, numbers, with_cookie};
use super::*;
use crate::{BindError, Descriptor, Half, MAX_SHARDS, open_shards};

fn open_all(descriptors: Vec<Descriptor>, config: &UdpConfig, shards: usize) -> Vec<UdpSockets> {
    let opened = open_shards(descriptors, config, shards).unwrap();
    opened.into_iter().map(|sockets| sockets.register().unwrap()).collect()
}

fn open_new(shards: usize) -> Vec<UdpSockets> {
    open_all(Vec::new(), &UdpConfig::default(), shards)
}

/// Returns what the next process gets.
fn left_over(shards: &[UdpSockets]) -> (Vec<Descriptor>, UdpConfig) {
    let descriptors = shards.iter().flat_map(|sockets| sockets.descriptors().unwrap()).collect();
    (descriptors, UdpConfig { port: shards[0].port(), ..UdpConfig::default() })
}

/// A sender that roams: each call of [`Self::send`] is from another port, and of IPv4 from another address.
struct Roaming {
    is_v6: bool,
    port: u16,
    number: u8,
}

impl Roaming {
    fn to(shards: &[UdpSockets], is_v6: bool) -> Self {
        Self { is_v6, port: shards[0].port(), number: 0 }
    }

    fn send(&mut self, datagram: &[u8]) {
        self.number = self.number % 200 + 1;
        let from = if self.is_v6 { V6 } else { [127, 0, 0, self.number].into() };
        let source = StdSocket::bind((from, 0)).unwrap();
        source.send_to(datagram, (if self.is_v6 { V6 } else { V4 }, self.port)).unwrap();
    }

    /// Sends a datagram and returns where it arrived.
    fn place(&mut self, shards: &[UdpSockets], datagram: &[u8]) -> (usize, Role) {
        let junk_before = shards[0].stats().junk_dropped;
        self.send(datagram);
        let (shard, place, bytes) = last(shards, self.is_v6, junk_before);
        assert!(place == Role::Drain || bytes == datagram.len());
        (shard, place)
    }
}

/// Returns the shard and the socket that got the last message, and its length.
fn last(shards: &[UdpSockets], is_v6: bool, junk_before: u64) -> (usize, Role, usize) {
    let mut buffer = [0; 1 << 16];
    loop {
        if shards[0].stats().junk_dropped > junk_before {
            return (0, Role::Drain, 0);
        }
        for (shard, sockets) in shards.iter().enumerate() {
            for (number, socket) in family(sockets, is_v6).each().enumerate() {
                let Ok(bytes) = socket.io.get_ref().read(&mut buffer) else { continue };
                let place = match number {
                    DATA => Role::Data,
                    HANDSHAKES => Role::Handshakes,
                    INITIATIONS => Role::Initiations,
                    other => panic!("socket {other}"),
                };
                return (shard, place, bytes);
            }
        }
        std::thread::yield_now();
    }
}

/// Returns the shard of a receiver index: of its bytes in a message, as a big endian number.
fn shard_of(index: u32, shards: usize) -> usize {
    u32::from_be_bytes(index.to_le_bytes()) as usize % shards
}

/// A message of each type with a receiver index, and the socket for it.
fn with_index(index: u32) -> [(Vec<u8>, Role); 3] {
    [
        (message(4, index, 100), Role::Data),
        (message(3, index, 64), Role::Handshakes),
        (message(2, index, 92), Role::Handshakes),
    ]
}

/// Asserts that messages with receiver indices and without arrive where they should.
fn assert_steered(shards: &[UdpSockets], is_v6: bool, indices: impl IntoIterator<Item = u32>) {
    let mut sender = Roaming::to(shards, is_v6);
    for index in indices {
        let shard = shard_of(index, shards.len());
        for (datagram, place) in with_index(index) {
            let arrived = sender.place(shards, &datagram);
            assert_eq!(arrived, (shard, place), "{}, {index:#x} of {}", datagram[0], shards.len());
        }
        assert_eq!(sender.place(shards, &message(1, index, 148)), (0, Role::Initiations));
        let mut proven = with_cookie(index as usize % 16);
        proven[4..8].copy_from_slice(&index.to_le_bytes());
        assert_eq!(sender.place(shards, &proven), (0, Role::Handshakes));
        assert_eq!(sender.place(shards, &message(5, index, 100)), (0, Role::Drain));
    }
}

#[test]
fn each_message_arrives_at_the_shard_of_its_receiver_index_wherever_it_comes_from() {
    in_namespace(async || {
        for count in 1..=8 {
            let shards = open_new(count);
            assert!(shards.iter().all(|sockets| sockets.features().steered));
            for is_v6 in [false, true] {
                let indices = [0, 1, u32::MAX, 1 << 24, 1 << 31].into_iter();
                assert_steered(&shards, is_v6, indices.chain(numbers(count as u32).take(150)));
            }
            assert!(shards[1..].iter().all(|sockets| sockets.stats().junk_dropped == 0));
            assert!(shards.iter().all(|sockets| sockets.stats().receive_overflows == 0));
        }
    });
}

#[test]
fn joined_messages_arrive_at_the_shard_of_their_receiver_index() {
    in_namespace(async || {
        let mut sender = open();
        for count in [1, 2, 3, 8] {
            let shards = open_new(count);
            for (address, index) in [V4, V6].into_iter().cycle().zip(numbers(11).take(40)) {
                for (datagram, place) in with_index(index) {
                    let batch = datagram.repeat(20);
                    let transmit = to(address, shards[0].port(), datagram.len(), &batch);
                    send(&mut sender, transmit).await.unwrap();
                    let arrived = last(&shards, address.is_ipv6(), 0);
                    assert_eq!(arrived, (shard_of(index, count), place, batch.len()));
                }
            }
        }
    });
}

/// Asserts that exactly the messages with an index in `known` arrive, and those of the shards in `unlisted`.
fn assert_filtered(shards: &[UdpSockets], known: &HashSet<u32>, unlisted: &[usize]) {
    for is_v6 in [false, true] {
        let mut sender = Roaming::to(shards, is_v6);
        let near = known.iter().flat_map(|index| [*index, index.wrapping_add(1), index.swap_bytes()]);
        for index in near.take(90).chain(numbers(77).take(60)) {
            let shard = shard_of(index, shards.len());
            let passes = known.contains(&index) || unlisted.contains(&shard);
            for (datagram, place) in with_index(index) {
                let expected = if passes { (shard, place) } else { (0, Role::Drain) };
                assert_eq!(sender.place(shards, &datagram), expected, "{}, {index:#x}", datagram[0]);
            }
        }
        assert_eq!(sender.place(shards, &message(1, 0, 148)), (0, Role::Initiations));
        assert_eq!(sender.place(shards, &with_cookie(0)), (0, Role::Handshakes));
    }
}

/// Returns indices for a shard.
fn list_of(shard: usize, shards: usize, len: usize) -> Vec<u32> {
    numbers(5).filter(|index| shard_of(*index, shards) == shard).take(len).collect()
}

#[test]
fn each_shard_has_a_list_of_its_own() {
    in_namespace(async || {
        for (count, len) in [(2, 0), (3, 1), (3, 20), (3, 170), (8, 64)] {
            let mut shards = open_new(count);
            let mut known = HashSet::new();
            // In mixed order, so that there are shards without a list on both sides.
            let order: Vec<usize> = (0..count).map(|number| (number * 3 + 1) % count).collect();
            let order: Vec<usize> = if count == 3 { vec![1, 2, 0] } else { order };
            for (done, shard) in order.iter().enumerate() {
                let list = list_of(*shard, count, len);
                assert!(shards[*shard].let_pass(Some(&list)));
                known.extend(list);
                assert_filtered(&shards, &known, &order[done + 1..]);
            }
            shards[0].let_half_ask(Some(Half::Upper));
            shards[0].let_half_ask(None);
            assert_filtered(&shards, &known, &[]);
            // Another list replaces that of its shard alone.
            let list = list_of(1, count, len);
            known.retain(|index| !list.contains(index));
            assert!(shards[1].let_pass(Some(&[])));
            assert_filtered(&shards, &known, &[]);
            for (done, shard) in order.iter().enumerate() {
                assert_eq!(shards[*shard].let_pass(None), done + 1 < count);
                assert_filtered(&shards, &known, &order[..=done]);
                if count == 8 {
                    break;
                }
            }
        }
    });
}

#[test]
fn with_more_indices_of_all_shards_than_fit_all_pass_until_they_fit_again() {
    in_namespace(async || {
        let mut shards = open_new(2);
        let mut sender = Roaming::to(&shards, false);
        let (first, second) = (list_of(0, 2, MOST_RECEIVERS), list_of(1, 2, 1));
        let (forged, strange) = (message(4, 0x100, 100), message(1, 0, 180));
        for too_many in [vec![second[0]], list_of(1, 2, MOST_RECEIVERS + 1)] {
            assert!(shards[0].let_pass(Some(&first)));
            assert_eq!(sender.place(&shards, &forged), (0, Role::Drain));
            assert!(shards[1].let_pass(Some(&too_many)));
            assert_eq!(sender.place(&shards, &forged), (0, Role::Data));
            assert_eq!(sender.place(&shards, &message(4, second[0], 100)), (1, Role::Data));
            assert_eq!(sender.place(&shards, &strange), (0, Role::Drain));
            if too_many.len() == 1 {
                assert!(shards[0].let_pass(Some(&first[1..])));
            } else {
                assert!(shards[1].let_pass(Some(&[])));
            }
            assert_eq!(sender.place(&shards, &forged), (0, Role::Drain));
            assert!(shards[1].let_pass(None));
        }
    });
}

#[test]
fn the_lists_of_the_most_shards_are_taken() {
    in_namespace(async || {
        let mut shards = open_new(MAX_SHARDS);
        shards[0].let_half_ask(Some(Half::Lower));
        let mut known = HashSet::new();
        for shard in (0..MAX_SHARDS).step_by(2) {
            let list = list_of(shard, MAX_SHARDS, MOST_RECEIVERS / (MAX_SHARDS / 2));
            assert!(shards[shard].let_pass(Some(&list)));
            known.extend(list);
        }
        let unlisted: Vec<usize> = (1..MAX_SHARDS).step_by(2).collect();
        shards[0].let_half_ask(None);
        assert_filtered(&shards, &known, &unlisted);
    });
}

#[test]
fn a_list_ends_with_its_shard_and_the_rules_of_all_with_the_last() {
    in_namespace(async || {
        let mut shards = open_new(2);
        let mut sender = Roaming::to(&shards, false);
        // Which sources are in the half is not known: some of these are in the other one.
        shards[0].let_half_ask(Some(Half::Upper));
        for sockets in &mut shards {
            assert!(sockets.let_pass(Some(&[])));
        }
        let (descriptors, _) = left_over(&shards);
        let sockets: Vec<_> = descriptors.into_iter().map(Socket::from).collect();
        let mut arrived = 0;
        // Returns how many arrived of all that were sent so far. The others are in the drain.
        let mut arrived_of = |sent| {
            while arrived + system::dropped(&sockets[DRAIN]) < sent {
                let each = sockets.iter().map(|mut socket| socket.read(&mut [0; 200]).is_ok());
                arrived += each.filter(|arrived| *arrived).count() as u64;
            }
            arrived
        };
        let [first, second] = [0, 1].map(|shard| message(4, list_of(shard, 2, 1)[0], 100));
        drop(shards.pop());
        sender.send(&second);
        assert_eq!(arrived_of(1), 1);
        sender.send(&first);
        assert_eq!(arrived_of(2), 1);
        drop(shards);
        sender.send(&first);
        for _ in 0..60 {
            sender.send(&message(1, 0, 148));
        }
        assert_eq!(arrived_of(63), 62);
    });
}

#[test]
fn another_number_of_shards_takes_a_whole_set_over_with_what_it_holds() {
    in_namespace(async || {
        let mut shards = open_new(1);
        for count in [3, 2, 1, 3, 8, 5, 5, 1] {
            for is_v6 in [false, true] {
                Roaming::to(&shards, is_v6).send(&message(1, 9, 148));
            }
            let (descriptors, config) = left_over(&shards);
            assert_eq!(descriptors.len(), 2 * sockets_of(shards.len()));
            drop(shards);
            shards = open_all(descriptors, &config, count);
            for is_v6 in [false, true] {
                let junk = shards[0].stats().junk_dropped;
                assert_eq!(last(&shards, is_v6, junk), (0, Role::Initiations, 148));
                assert_steered(&shards, is_v6, numbers(count as u32).take(40));
            }
        }
    });
}

#[test]
fn without_a_program_each_shard_sends_and_every_socket_is_read() {
    in_namespace(async || {
        for (before, missing, count) in [(1, DRAIN, 2), (1, DRAIN, 8), (3, INITIATIONS, 4), (3, 6, 1)] {
            let (mut descriptors, config) = left_over(&open_new(before)[..]);
            descriptors.retain(|descriptor| !crate::check_socket(descriptor).unwrap().is_v6);
            drop(descriptors.remove(missing.min(descriptors.len() - 1)));
            let sockets = descriptors.len().max(count);
            let mut shards = open_all(descriptors, &config, count);
            assert_eq!(
                shards.iter().map(|shard| family(shard, false).each().count()).sum::<usize>(),
                sockets
            );
            let mut far = open();
            for shard in &mut shards {
                assert_eq!(shard.features().steered, count == 1);
                assert!(!family(shard, false).is_steered());
                let sent = contents(100, 100);
                send(shard, to(V4, far.port(), 100, &sent)).await.unwrap();
                assert_in_order(&receive(&mut far, 1).await, &sent, 100);
            }
            let mut sender = Roaming::to(&shards, false);
            for kind in 1..=200 {
                sender.send(&message(kind, 0, 148));
            }
            let mut arrived = 0;
            for shard in &mut shards {
                arrived += count_waiting(shard).await;
            }
            assert_eq!(arrived, 200, "{before}, {missing}, {count}");
        }
    });
}

#[test]
fn another_port_is_for_all_shards_and_the_counters_stay() {
    in_namespace(async || {
        let mut shards = open_new(3);
        let before = shards[0].port();
        Roaming::to(&shards, false).send(b"junk");
        for sockets in &mut shards {
            assert!(matches!(sockets.rebind(Some(0), None), Err(BindError::Io { .. })));
            assert_eq!(sockets.rebind(None, Some(7)).unwrap(), before);
        }
        let opened = open_shards(Vec::new(), &UdpConfig::default(), 3).unwrap();
        let port = opened[0].port();
        assert_ne!(port, before);
        for (sockets, opened) in shards.iter_mut().zip(opened) {
            sockets.replace(opened).unwrap();
            assert_eq!(sockets.port(), port);
        }
        assert_eq!(shards[0].stats().junk_dropped, 1);
        // The second count is that of the drain of the new port.
        let mut sender = Roaming::to(&shards, true);
        sender.send(b"junk");
        assert_eq!(last(&shards, true, 1), (0, Role::Drain, 0));
        for index in numbers(1).take(20) {
            let arrived = sender.place(&shards, &message(4, index, 100));
            assert_eq!(arrived, (shard_of(index, 3), Role::Data));
        }
    });
}

#[test]
fn several_shards_need_no_privilege_and_any_thread_registers_them() {
    let opened = open_shards(Vec::new(), &UdpConfig::default(), 3).unwrap();
    let register = |sockets: crate::ShardSockets| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            let _context = runtime.enter();
            assert!(sockets.register().unwrap().features().steered);
        })
    };
    // Some of them leave while others have not begun.
    opened.into_iter().map(register).for_each(|thread| thread.join().unwrap());
}

#[test]
fn as_many_shards_as_there_are_numbers_for_are_opened() {
    for shards in [0, MAX_SHARDS + 1] {
        let error = open_shards(Vec::new(), &UdpConfig::default(), shards).unwrap_err().to_string();
        let expected =
            format!("cannot divide the UDP port among {shards} packet threads: this system allows 1 to 64");
        assert_eq!(error, expected);
    }
}
