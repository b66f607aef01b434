//! What holds at the end of every world, and in each snapshot of a daemon.

use std::time::Duration;

use weft_dataplane::Snapshot;
use weft_tunnel::{Change, DropReason, MAX_BATCH_SEGMENTS};

use crate::events::MAX_TCP_SEGMENTS;
use crate::kernel::TooLong;
use crate::network::{Faults, LEAST_LIMIT, OVERHEAD};
use crate::node::{MTU, STAGING};
use crate::packet::inner_v6;
use crate::plan::{Event, Flow, GATEWAY, ROVING, secs};
use crate::world::World;

/// Within this time two ends that hear each other have a session (docs/RELIABILITY.md).
const AGREEMENT: u64 = 45;
/// Drops of what was counted as sealed, opened, or none.
const LATER: [DropReason; 4] = [
    DropReason::UdpSendFailed,
    DropReason::DatagramTooLong,
    DropReason::TunWriteFailed,
    DropReason::ControlQueueFull,
];
/// How often programs try, three seconds apart, until they know what a path carries. Each of two links costs
/// three packets: the first is lost there, the second goes in fragments and shows the daemon the MTU, the
/// third is answered.
const TRIES: usize = 7;
/// How often addresses change their peer, and peers their packet thread.
const REARRANGEMENTS: usize = 3;
/// After this time without traffic nothing is sent any more: Reject-After-Time three times.
const EXPIRY: u64 = 540;

pub(crate) fn check_bounds(snapshot: &Snapshot) {
    assert!(snapshot.tunnel.staged_bytes <= STAGING, "{:?}", snapshot.tunnel);
    let queues = &snapshot.queues;
    // The batches of a super-packet of tiny segments may exceed the capacity.
    let transmit = 8 + MAX_TCP_SEGMENTS / MAX_BATCH_SEGMENTS;
    let threads = snapshot.packet_threads.len();
    assert!(queues.control <= threads * 256 && queues.transmit <= threads * transmit, "{queues:?}");
    assert!(queues.read_ahead_bytes <= threads * (4 << 20), "{queues:?}");
}

impl World {
    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.events.clear();
        self.network.borrow_mut().faults = Faults::NONE;
        for node in 0..self.nodes.len() {
            self.happen(node, Event::TakeOver);
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
                self.add_flow(from, to);
            }
        }
        for _ in 0..AGREEMENT / 3 {
            let numbers = self.give_each(|_| true);
            self.run_until(self.now() + secs(3)).await;
            if self.have_arrived(&numbers) {
                return;
            }
        }
        panic!("no agreement within {AGREEMENT} s");
    }

    /// Adds a flow that no other has the number of.
    fn add_flow(&mut self, from: usize, to: usize) {
        let number = 1000 + self.network.borrow_mut().new_number() as u32;
        self.flows.push(Flow::plain(from, to, number));
    }

    /// Packets of any length pass between all, or their senders learn which do.
    pub(crate) async fn carries(&mut self) {
        // Of both families.
        for flow in self.flows.iter_mut().step_by(3) {
            flow.headers.source = inner_v6(flow.from).into();
            flow.headers.destination = inner_v6(flow.to).into();
        }
        let mut late: Vec<usize> = (0..self.flows.len()).collect();
        for _ in 0..TRIES {
            let longest = late.iter().map(|flow| self.flows[*flow].longest(&self.network.borrow()));
            let longest: Vec<_> = longest.collect();
            let numbers: Vec<_> = late.iter().map(|flow| self.give(*flow, usize::from(MTU)).0).collect();
            self.run_until(self.now() + secs(3)).await;
            let network = self.network.borrow();
            let has_passed = |place: usize| {
                let flow = &self.flows[late[place]];
                let (from, to) = (&network.kernels[flow.from], &network.kernels[flow.to]);
                let len = longest[place];
                let has_arrived = network.has_arrived(numbers[place]);
                match from.too_long {
                    TooLong::Fragmented => has_arrived,
                    TooLong::Reported => {
                        has_arrived
                            && (len <= LEAST_LIMIT || len + OVERHEAD <= from.link_mtu.min(to.link_mtu))
                    }
                    TooLong::Refused => has_arrived || len + OVERHEAD > from.link_mtu,
                }
            };
            late = (0..late.len()).filter(|place| !has_passed(*place)).map(|place| late[place]).collect();
        }
        assert!(late.is_empty(), "these do not pass, and no one learns of it: {late:?}");
    }

    /// Once links carry long packets again, these pass whole: what is known of paths has been forgotten.
    pub(crate) async fn widens(&mut self) {
        for node in 0..self.nodes.len() {
            self.network.borrow_mut().set_link_mtu(node, 1500);
        }
        self.agrees().await;
        let numbers = (0..self.flows.len()).map(|flow| self.give(flow, usize::from(MTU)).0);
        let numbers: Vec<_> = numbers.collect();
        self.run_until(self.now() + secs(3)).await;
        let network = self.network.borrow();
        let are_long = self.flows.iter().all(|flow| flow.longest(&network) == usize::from(MTU));
        assert!(are_long && numbers.iter().all(|number| network.has_arrived(*number)), "a path stays narrow");
    }

    /// While addresses change their peer and peers their packet thread, every packet that is lost is counted,
    /// and no datagram is for a peer that is nowhere.
    pub(crate) async fn rearranges(&mut self) {
        let clients = self.nodes.len() - 1;
        let threads = self.network.borrow().kernels[GATEWAY].ends.len();
        let delay = self.network.borrow().delay;
        let strays = self.dropped(DropReason::UnknownReceiverIndex).await;
        self.add_flow(GATEWAY, ROVING);
        let roving = self.flows.len() - 1;
        for _ in 0..REARRANGEMENTS {
            let owner = 1 + self.chance.below(clients);
            let peer = 1 + self.chance.below(clients);
            let mut numbers = Vec::new();
            let moved_before = self.dropped(DropReason::PeerMoved).await;
            for step in 0..20 {
                match step {
                    5 => self.happen(GATEWAY, Event::Reroute(owner)),
                    10 => {
                        numbers.extend(self.give_many(|flow| flow.to == peer));
                        let to = self.chance.below(threads) as u16;
                        self.happen(GATEWAY, Event::Move(peer, to));
                    }
                    // Meanwhile the peer goes on to another session.
                    11..18 => drop(self.give_many(|flow| flow.from == peer)),
                    _ => {}
                }
                numbers.extend(self.give_each(|flow| flow.from == GATEWAY));
                // While a packet thread waits for a processor, too much may come for it (`overload`).
                self.give_each(|flow| flow.to == GATEWAY);
                let pause = self.chance.up_to(Duration::from_millis(3));
                self.run_until(self.now() + pause).await;
            }
            self.run_until(self.now() + secs(2) + delay).await;
            let moved = self.dropped(DropReason::PeerMoved).await - moved_before;
            let last = self.give(roving, 100).0;
            self.run_until(self.now() + delay + Duration::from_millis(60)).await;
            let network = self.network.borrow();
            let lost = numbers.iter().filter(|number| !network.has_arrived(**number)).count() as u64;
            assert!(lost <= moved, "{lost} packets are lost, of which {moved} are counted");
            assert!(network.has_arrived_at(owner, last), "the addresses are not those of node {owner}");
        }
        self.flows.pop();
        assert_eq!(
            self.dropped(DropReason::UnknownReceiverIndex).await,
            strays,
            "datagrams for no peer of their packet thread"
        );
    }

    /// Returns how many packets the gateway has dropped for a reason so far.
    async fn dropped(&mut self, reason: DropReason) -> u64 {
        self.nodes[GATEWAY].snapshot = None;
        self.nodes[GATEWAY].ask();
        self.run_until(self.now() + secs(1)).await;
        self.nodes[GATEWAY].snapshot.as_ref().unwrap().drops.get(reason)
    }

    /// A daemon that takes over from another one has a session with each peer after a round trip, whatever
    /// address the peer has, and what waited for it arrives.
    pub(crate) async fn hands_over(&mut self) {
        // Packet threads wait for processors.
        let (delay, moment) = (self.network.borrow().delay, Duration::from_millis(60));
        for node in 0..self.nodes.len() {
            self.happen(node, Event::HandOver);
            // It ends in this turn.
            self.run_until(self.now() + moment).await;
            let waits =
                if self.chance.happens(50) { self.give_each(|flow| flow.from == node) } else { Vec::new() };
            while !self.nodes[node].runs() {
                self.run_until(self.now() + moment).await;
            }
            // An initiation, its answer, and the packets.
            self.run_until(self.now() + 3 * delay + moment).await;
            assert!(self.have_arrived(&waits), "what waited for node {node} is lost");
            let to_it = self.give_each(|flow| flow.to == node);
            self.run_until(self.now() + delay + moment).await;
            assert!(self.have_arrived(&to_it), "node {node} has no session after it took over");
        }
    }

    /// Gives more packets than a turn sends, short enough for every link, in one of these flows; a packet if
    /// there is one packet thread.
    fn give_many(&mut self, is_wanted: impl Fn(&Flow) -> bool) -> Vec<u64> {
        let threads = self.network.borrow().kernels[GATEWAY].ends.len();
        let flow = self.flows.iter().position(is_wanted).unwrap();
        (0..if threads > 1 { 250 } else { 1 }).map(|_| self.give(flow, 400).0).collect()
    }

    /// Gives a packet of each of these flows to the TUN of its sender, and returns their numbers.
    fn give_each(&mut self, is_wanted: impl Fn(&Flow) -> bool) -> Vec<u64> {
        let flows: Vec<_> = (0..self.flows.len()).filter(|flow| is_wanted(&self.flows[*flow])).collect();
        flows.into_iter().map(|flow| self.give(flow, 100).0).collect()
    }

    fn have_arrived(&self, numbers: &[u64]) -> bool {
        numbers.iter().all(|number| self.network.borrow().has_arrived(*number))
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
            self.nodes[node].snapshot = None;
            self.nodes[node].ask();
        }
        self.run_until(self.now() + secs(1)).await;
        for (number, kernel) in self.network.borrow().kernels.iter().enumerate() {
            let snapshot = self.nodes[number].snapshot.as_ref().unwrap();
            let (books, tunnel, drops) = (kernel.books, &snapshot.tunnel, &snapshot.drops);
            let refused = books.data_refused + books.others_refused;
            assert_eq!(tunnel.sealed, books.data_sent + books.data_refused, "{books:?} {tunnel:?}");
            assert_eq!(drops.get(DropReason::DatagramTooLong), books.too_long, "{books:?}");
            assert_eq!(drops.get(DropReason::UdpSendFailed), refused - books.too_long, "{books:?}");
            assert_eq!(tunnel.opened, books.packets_written + kernel.tun_stats.write_failures, "{books:?}");
            let later: u64 = LATER.iter().map(|reason| drops.get(*reason)).sum();
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
