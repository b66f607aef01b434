//! Back-pressure and independence of the two directions: event loops over TUNs and sockets that can be told
//! to take nothing.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod network;
mod nodes;
mod packet_threads;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Waker;
use std::time::Duration;

use weft_dataplane::Command;
use weft_tunnel::{Change, DropReason, Offload, PeerConfig, PeerSettings, PublicKey};
use weft_udp::SendError;

use crate::network::{Apart, Socket};
use crate::nodes::{
    Node, SMALL, expect_in_order, inject_until_blocked, number, packet, shake_hands, until, with_nodes,
};

#[test]
fn a_socket_that_takes_nothing_stops_the_reading_and_loses_nothing() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[0].refuse_sends(true);
        let sent = inject_until_blocked(&nodes, 0, 1).await;
        // 64 in the kernel's queue, 3 slabs of at most 93 packets, and the batches that were sealed.
        assert!(sent < 64 + 3 * 93 + 8 * 64, "{sent} packets went in and none came out");
        nodes[0].refuse_sends(false);
        expect_in_order(&nodes[1], 0..sent).await;
        assert_eq!(nodes[0].snapshot().await.drops.total(), 0);
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn what_was_sent_before_the_end_leaves() {
    with_nodes(3, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        shake_hands(&nodes, 2, 1).await;
        // The device of one has another process next, which sends them.
        for (node, command, expected) in [(0, Command::Stop, 64), (2, Command::Leave, 0)] {
            // More than a turn carries, and the command is there with them.
            for number in 0..64 {
                nodes[usize::from(node)].kernel.inject(&packet(node, 1, number), Offload::None).unwrap();
            }
            nodes[usize::from(node)].commands.try_send(command).unwrap();
            nodes[usize::from(node)].commands.closed().await;
            let mut arrived = Vec::new();
            for _ in 0..1000 {
                tokio::task::yield_now().await;
                arrived.extend(nodes[1].kernel.take().map(|packet| number(&packet)));
            }
            assert_eq!(arrived, Vec::from_iter(0..expected));
        }
    });
}

#[test]
fn a_send_that_fails_costs_what_it_carried_and_what_follows_keeps_its_order() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let failed = |kind: io::ErrorKind| SendError::Failed(kind.into());
        let errors = [
            io::ErrorKind::Other,
            io::ErrorKind::OutOfMemory,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable,
        ];
        let errors = errors.into_iter().map(failed).chain([SendError::TooLong]);
        let (mut next, mut counted) = (0, 0);
        for error in errors {
            let description = format!("{error:?}");
            nodes[0].network.borrow_mut().sockets.get_mut(&nodes[0].address).unwrap().send_errors =
                VecDeque::from([error]);
            let end = next + 200;
            let (mut injected, mut arrived) = (next, Vec::new());
            let (mut dropped, mut turns) = (0, 0);
            while arrived.len() as u64 + dropped < 200 {
                turns += 1;
                assert!(turns < 10_000, "{description}: {} arrived, {dropped} are counted", arrived.len());
                while injected < end && nodes[0].kernel.inject(&packet(0, 1, injected), Offload::None).is_ok()
                {
                    injected += 1;
                }
                tokio::task::yield_now().await;
                while let Some(packet) = nodes[1].kernel.take() {
                    arrived.push(number(&packet));
                }
                dropped = nodes[0].snapshot().await.drops.total() - counted;
            }
            assert!(dropped > 0, "{description}: one send has failed");
            assert_eq!(arrived.len() as u64 + dropped, 200, "{description}");
            assert!(arrived.is_sorted() && arrived.iter().all(|number| (next..end).contains(number)));
            (next, counted) = (end, counted + dropped);
        }
        let drops = nodes[0].snapshot().await.drops;
        let too_long = drops.get(DropReason::DatagramTooLong);
        assert!(too_long > 0 && drops.get(DropReason::UdpSendFailed) + too_long == counted, "{drops:?}");
    });
}

#[test]
fn a_blocked_socket_does_not_stop_decryption() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[0].refuse_sends(true);
        inject_until_blocked(&nodes, 0, 1).await;
        for n in 0..1000 {
            nodes[1].kernel.inject(&packet(1, 0, n), Offload::None).unwrap();
            assert_eq!(number(&nodes[0].kernel.recv().await.unwrap()), n);
        }
    });
}

#[test]
fn a_tun_that_takes_nothing_for_a_moment_loses_nothing_and_does_not_stop_encryption() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..500 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        assert!(nodes[1].waiting_datagrams() > 400, "what has no room stays in the socket");
        for n in 0..500 {
            nodes[1].kernel.inject(&packet(1, 0, n), Offload::None).unwrap();
            assert_eq!(number(&nodes[0].kernel.recv().await.unwrap()), n);
        }
        assert!(nodes[1].waiting_datagrams() > 400);
        nodes[1].kernel.set_accepting(true);
        expect_in_order(&nodes[1], 0..500).await;
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn a_stalled_tun_costs_data_only_and_handshakes_of_others_go_on() {
    with_nodes(3, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..100 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        // The clock stands still but for this.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        until(|| (nodes[1].waiting_datagrams() == 0).then_some(())).await;
        nodes[2].kernel.inject(&packet(2, 1, 0), Offload::None).unwrap();
        let handshakes = loop {
            let handshakes = nodes[2].snapshot().await.tunnel.handshakes;
            if handshakes > 0 {
                break handshakes;
            }
        };
        assert_eq!(handshakes, 1);
        let drops = nodes[1].snapshot().await.drops;
        // The packet of the third is data too, and so is the keepalive that ends its handshake.
        assert!((100..=102).contains(&drops.get(DropReason::TunStalled)), "{drops:?}");
        assert_eq!(drops.total(), drops.get(DropReason::TunStalled));
        nodes[1].kernel.set_accepting(true);
        // One packet brings the loop back to the TUN; everything from then on arrives.
        nodes[0].kernel.inject(&packet(0, 1, 1000), Offload::None).unwrap();
        assert_eq!(number(&nodes[1].kernel.recv().await.unwrap()), 1000);
    });
}

#[test]
fn a_tun_that_takes_one_packet_after_the_other_is_not_stalled() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        for n in 0..100 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        nodes[1].kernel.set_accepting(false);
        let mut numbers = Vec::new();
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            numbers.push(number(&nodes[1].kernel.take().unwrap()));
        }
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
        nodes[1].kernel.set_accepting(true);
        while numbers.len() < 100 {
            numbers.push(number(&nodes[1].kernel.recv().await.unwrap()));
        }
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn handshakes_go_on_while_the_tun_takes_nothing_and_data_waits_for_it() {
    with_nodes(3, SMALL, async |nodes| {
        nodes[0].network.borrow_mut().apart = Apart::Handshakes;
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..500 {
            until(|| nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).ok()).await;
        }
        // It stands still for less than a second: the clock does not move.
        nodes[2].kernel.inject(&packet(2, 1, 500), Offload::None).unwrap();
        while nodes[2].snapshot().await.tunnel.handshakes == 0 {
            tokio::task::yield_now().await;
        }
        assert!(nodes[1].waiting_datagrams() > 400, "what has no room stays in the socket");
        nodes[1].kernel.set_accepting(true);
        let mut numbers = Vec::new();
        for _ in 0..501 {
            numbers.push(number(&nodes[1].kernel.recv().await.unwrap()));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (0..501).collect::<Vec<_>>());
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn receive_errors_between_handshake_messages_do_not_end_the_event_loop() {
    with_nodes(2, SMALL, async |nodes| {
        {
            let mut network = nodes[1].network.borrow_mut();
            network.apart = Apart::Handshakes;
            let socket = network.sockets.get_mut(&nodes[1].address).unwrap();
            socket.handshakes_fail = true;
            // More errors than may come one after the other.
            socket.handshakes.extend((0..1100).map(|_| (nodes[0].address, vec![1, 0, 0, 0])));
        }
        shake_hands(&nodes, 0, 1).await;
    });
}

#[test]
fn a_socket_that_reports_an_error_now_and_then_and_receives_nothing_goes_on() {
    with_nodes(2, SMALL, async |nodes| {
        let address = nodes[1].address;
        // More errors than may come one after the other.
        nodes[1].network.borrow_mut().sockets.get_mut(&address).unwrap().calls_to_fail = 2200;
        for _ in 0..2200 {
            let reader = nodes[1].network.borrow_mut().sockets.get_mut(&address).unwrap().reader.take();
            reader.into_iter().for_each(Waker::wake);
            tokio::task::yield_now().await;
        }
        assert_eq!(nodes[1].network.borrow().sockets[&address].calls_to_fail, 0);
        shake_hands(&nodes, 0, 1).await;
    });
}

#[test]
fn while_the_kernel_drops_unknown_receiver_indices_sessions_go_on_and_begin_both_ways() {
    with_nodes(4, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let network = Rc::clone(&nodes[1].network);
        let is_filtering = || network.borrow().sockets[&nodes[1].address].passing.is_some();
        assert!(!is_filtering());
        for index in 0..2000_u32 {
            let mut junk = vec![0; 64];
            junk[0] = 4;
            junk[4..8].copy_from_slice(&index.to_le_bytes());
            let mut network = network.borrow_mut();
            let socket = network.sockets.get_mut(&nodes[1].address).unwrap();
            socket.inbox.push_back((nodes[3].address, junk));
            socket.reader.take().into_iter().for_each(Waker::wake);
        }
        until(|| is_filtering().then_some(())).await;
        for (from, to) in [(0, 1), (2, 1), (1, 3), (1, 0), (1, 2), (3, 1)] {
            nodes[usize::from(from)].kernel.inject(&packet(from, to, 7), Offload::None).unwrap();
            let arrived = nodes[usize::from(to)].kernel.recv();
            // At once: a message that was dropped would be sent again after 5 s.
            let arrived = tokio::time::timeout(Duration::from_secs(4), arrived).await;
            assert_eq!(number(&arrived.expect("nothing arrives").unwrap()), 7, "from {from} to {to}");
            assert!(is_filtering());
        }
    });
}

#[test]
fn data_that_arrives_with_handshake_messages_is_not_lost() {
    with_nodes(2, SMALL, async |nodes| {
        nodes[0].network.borrow_mut().apart = Apart::All;
        shake_hands(&nodes, 0, 1).await;
        nodes[1].kernel.set_accepting(false);
        for n in 0..5 {
            nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        }
        until(|| (nodes[0].kernel.outbound_len() == 0).then_some(())).await;
        nodes[1].kernel.set_accepting(true);
        expect_in_order(&nodes[1], 0..5).await;
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn packets_that_were_read_together_are_sent_with_one_call() {
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let before = nodes[0].snapshot().await.udp;
        for n in 0..45 {
            nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        }
        expect_in_order(&nodes[1], 0..45).await;
        let after = nodes[0].snapshot().await.udp;
        assert_eq!(after.datagrams_sent - before.datagrams_sent, 45);
        assert_eq!(after.batches_sent - before.batches_sent, 1);
    });
}

/// Peers, each with two prefixes; with an endpoint they are to be kept in reach.
fn many_peers(count: u32, endpoint: Option<SocketAddr>) -> Vec<Change> {
    (0..count)
        .map(|n| {
            let mut key = [9; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            let [_, a, b, c] = n.to_be_bytes();
            let config = PeerConfig {
                public_key: PublicKey::from_bytes(key),
                endpoint,
                allowed_ips: vec![
                    format!("11.{a}.{b}.{c}/32").parse().unwrap(),
                    format!("fd00::{n:x}/128").parse().unwrap(),
                ],
                settings: PeerSettings {
                    persistent_keepalive: endpoint.and(NonZero::new(25)),
                    ..PeerSettings::default()
                },
            };
            Change::AddPeer(Box::new(config))
        })
        .collect()
}

/// Packets go to and fro, one at a time, until `done`: how many went through meanwhile.
async fn packets_until<T>(nodes: &[Node], mut done: impl FnMut() -> Option<T>) -> (u32, T) {
    for n in 0..u32::MAX {
        if let Some(value) = done() {
            return (n, value);
        }
        nodes[0].kernel.inject(&packet(0, 1, n), Offload::None).unwrap();
        assert_eq!(number(&nodes[1].kernel.recv().await.unwrap()), n);
    }
    panic!("it never ends");
}

#[test]
fn ten_thousand_peers_come_are_counted_and_go_in_slices_between_which_packets_pass() {
    const PEERS: u32 = 10_000;
    with_nodes(2, SMALL, async |nodes| {
        shake_hands(&nodes, 0, 1).await;
        let changes = many_peers(PEERS, None);
        let keys = changes.iter().filter_map(|change| match change {
            Change::AddPeer(peer) => Some(peer.public_key),
            _ => None,
        });
        let gone: Vec<Change> = keys.map(Change::RemovePeer).collect();

        let (answer, answered) = mpsc::sync_channel(1);
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        let (passed, ()) = packets_until(&nodes, || answered.try_recv().ok()).await;
        // A packet needs a turn of the loop, and each turn makes 128 steps of the 60,000 that these peers
        // are.
        assert!(passed > 200, "{passed} packets while {PEERS} peers were added");

        let (answer, answered) = mpsc::sync_channel(1);
        nodes[0].commands.send(Command::Snapshot { peers: Vec::new(), answer }).await.unwrap();
        let (passed, snapshot) = packets_until(&nodes, || answered.try_recv().ok()).await;
        assert_eq!(snapshot.peers.len(), PEERS as usize + 1);
        assert!(passed >= 5, "{passed} packets while {PEERS} peers were read, 512 a turn");

        let (answer, answered) = mpsc::sync_channel(1);
        // Their prefixes would each be looked for in the whole table: this is what the control thread sends
        // first.
        let prefixes = gone.iter().filter_map(|change| match change {
            Change::RemovePeer(peer) => Some((*peer, peer.as_bytes()[..4].try_into().unwrap())),
            _ => None,
        });
        let prefixes = prefixes.map(|(peer, n)| {
            let n = u32::from_le_bytes(n);
            let [_, a, b, c] = n.to_be_bytes();
            let remove = vec![
                format!("11.{a}.{b}.{c}/32").parse().unwrap(),
                format!("fd00::{n:x}/128").parse().unwrap(),
            ];
            Change::AllowedIps { peer, add: Vec::new(), remove }
        });
        let changes = prefixes.collect::<Vec<_>>().into_iter().chain(gone).collect();
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        let (passed, ()) = packets_until(&nodes, || answered.try_recv().ok()).await;
        assert!(passed > 200, "{passed} packets while {PEERS} peers were removed");
        let snapshot = nodes[0].snapshot().await;
        assert_eq!((snapshot.peers.len(), snapshot.drops.total()), (1, 0));
        assert_eq!(nodes[1].snapshot().await.drops.total(), 0);
    });
}

#[test]
fn timers_of_a_thousand_peers_that_are_due_at_once_need_nothing_else_to_happen() {
    const PEERS: usize = 1_500;
    with_nodes(1, SMALL, async |nodes| {
        let silent = SocketAddr::from(([192, 0, 2, 99], 51820));
        nodes[0].network.borrow_mut().sockets.insert(silent, Socket::default());
        let initiations = || nodes[0].network.borrow().sockets[&silent].inbox.len();
        let (answer, answered) = mpsc::sync_channel(1);
        let changes = many_peers(u32::try_from(PEERS).unwrap(), Some(silent));
        nodes[0].commands.send(Command::Change { changes, answer }).await.unwrap();
        until(|| answered.try_recv().ok()).await;
        // As long as it takes within the budget of handshakes: time passes by itself while nothing else is to
        // be done.
        let all_have = async |times: usize| {
            let mut waited = Duration::ZERO;
            while initiations() < times * PEERS && waited < Duration::from_secs(20) {
                tokio::time::sleep(Duration::from_millis(10)).await;
                waited += Duration::from_millis(10);
            }
            assert!(initiations() >= times * PEERS, "{} initiations after {waited:?}", initiations());
        };
        all_have(1).await;
        // As after a pause of the process: every one of them is to be tried again.
        tokio::time::advance(Duration::from_secs(6)).await;
        all_have(2).await;
    });
}

#[test]
fn a_device_that_is_gone_ends_the_event_loop() {
    with_nodes(2, SMALL, async |mut nodes| {
        let Node { kernel, commands, .. } = nodes.remove(0);
        drop(kernel);
        commands.closed().await;
    });
}
