//! What holds at the end of every world, and in each snapshot of a daemon.

use weft_dataplane::Snapshot;
use weft_tunnel::{Change, DropReason, MAX_BATCH_SEGMENTS};

use crate::events::MAX_TCP_SEGMENTS;
use crate::network::Faults;
use crate::node::STAGING;
use crate::plan::{Event, Flow, GATEWAY, secs};
use crate::world::World;

/// Within this time two ends that hear each other have a session (docs/RELIABILITY.md).
const AGREEMENT: u64 = 45;
/// After this time without traffic nothing is sent any more: Reject-After-Time three times.
const EXPIRY: u64 = 540;

pub(crate) fn check_bounds(snapshot: &Snapshot) {
    assert!(snapshot.tunnel.staged_bytes <= STAGING, "{:?}", snapshot.tunnel);
    let queues = &snapshot.queues;
    // The batches of a super-packet of tiny segments may exceed the capacity.
    let transmit = 8 + MAX_TCP_SEGMENTS / MAX_BATCH_SEGMENTS;
    assert!(queues.control <= 256 && queues.transmit <= transmit, "{queues:?}");
    assert!(queues.read_ahead_bytes <= 4 << 20, "{queues:?}");
}

impl World {
    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.events.clear();
        self.network.borrow_mut().faults = Faults::NONE;
        for node in 0..self.nodes.len() {
            for event in
                [Event::TunIsFull(false), Event::SocketIsFull(false), Event::Errors(0), Event::Cut(false)]
            {
                self.happen(node, event);
            }
        }
        for (node, peer) in self.removed.clone() {
            self.happen(node, Event::Add(peer));
        }
    }

    /// Packets pass between all again, both ways.
    pub(crate) async fn agrees(&mut self) {
        self.flows.clear();
        for client in 1..self.nodes.len() {
            for (from, to) in [(client, GATEWAY), (GATEWAY, client)] {
                self.flows.push(Flow::plain(from, to, 1000 + self.flows.len() as u32));
            }
        }
        for _ in 0..AGREEMENT / 3 {
            let numbers: Vec<_> = (0..self.flows.len()).map(|flow| self.give(flow, 100).0).collect();
            self.run_until(self.now() + secs(3)).await;
            if numbers.iter().all(|number| self.network.borrow().has_arrived(*number)) {
                return;
            }
        }
        panic!("no agreement within {AGREEMENT} s");
    }

    /// Without traffic and keepalives, nothing is sent after a while.
    pub(crate) async fn falls_silent(&mut self) {
        for node in &mut self.nodes {
            let keys = node.peers.values().map(|peer| peer.public_key);
            let changes = keys.map(|peer| Change::PersistentKeepalive { peer, interval: None }).collect();
            node.change(changes);
        }
        self.run_until(self.now() + secs(EXPIRY)).await;
        let before = self.network.borrow().messages;
        self.run_until(self.now() + secs(86_400)).await;
        assert_eq!(self.network.borrow().messages, before, "messages without a cause");
        assert!(self.network.borrow().is_empty());
    }

    /// Every packet and every datagram of the daemons that run is somewhere, or is counted once.
    pub(crate) async fn check_books(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].ask();
        }
        self.run_until(self.now() + secs(1)).await;
        for (number, kernel) in self.network.borrow().kernels.iter().enumerate() {
            let snapshot = self.nodes[number].snapshot.as_ref().unwrap();
            let (books, tunnel, drops) = (kernel.books, &snapshot.tunnel, &snapshot.drops);
            let refused = books.data_refused + books.others_refused;
            assert_eq!(tunnel.sealed, books.data_sent + books.data_refused, "{books:?} {tunnel:?}");
            assert_eq!(drops.get(DropReason::UdpSendFailed), refused, "{books:?}");
            assert_eq!(tunnel.opened, books.packets_written + kernel.tun_stats.write_failures, "{books:?}");
            let later = [DropReason::UdpSendFailed, DropReason::TunWriteFailed, DropReason::ControlQueueFull];
            let later: u64 = later.iter().map(|reason| drops.get(*reason)).sum();
            let accounted = tunnel.sealed
                + tunnel.staged_segments
                + tunnel.opened
                + tunnel.keepalives_received
                + (drops.total() - later);
            let given = books.packets_read + books.received;
            let handshakes = given.checked_sub(accounted);
            assert!(
                handshakes.is_some_and(|handshakes| handshakes <= books.handshakes_received),
                "{given} in, {accounted} accounted for: {books:?} {tunnel:?} {drops:?}"
            );
        }
    }
}
