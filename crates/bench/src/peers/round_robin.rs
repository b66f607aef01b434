//! Order of sending: round-robin with windows.

use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::shape::Shape;

/// Time without an arrival after which packets in flight count as lost.
pub(super) const LOST: Duration = Duration::from_millis(300);
/// Pause of a sender while the windows are full.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Peers in turn, with one window for all peers together and one for each peer, so that a peer with losses
/// does not block the others. A flood has no windows.
pub(super) struct RoundRobin {
    is_flood: bool,
    all: u64,
    each: u64,
    peers: Vec<Window>,
    /// Packets given up as lost, all peers together.
    forgotten: u64,
    next: usize,
}

struct Window {
    arrived: u64,
    since: Instant,
    /// Packets in flight that were given up as lost.
    forgotten: u64,
}

impl RoundRobin {
    pub(super) fn new(shape: Shape, peers: usize, is_flood: bool) -> Self {
        let each = (shape.window / peers.max(1) as u64).max(2 * shape.burst);
        let peer = || Window { arrived: 0, since: Instant::now(), forgotten: 0 };
        let peers = std::iter::repeat_with(peer).take(peers).collect();
        Self { is_flood, all: shape.window, each, peers, forgotten: 0, next: 0 }
    }

    /// Returns the next peer that may send a burst; `None` if the windows are full, and the sender should
    /// pause.
    pub(super) fn next(&mut self, ledger: &Ledger) -> Option<usize> {
        for _ in 0..self.peers.len() {
            let peer = self.next;
            self.next = (peer + 1) % self.peers.len();
            if self.is_flood || self.has_room(ledger, peer) {
                return Some(peer);
            }
        }
        None
    }

    fn has_room(&mut self, ledger: &Ledger, number: usize) -> bool {
        let in_flight = ledger.in_flight_of(number);
        let peer = &mut self.peers[number];
        let still = peer.forgotten.min(in_flight);
        self.forgotten -= peer.forgotten - still;
        peer.forgotten = still;
        if in_flight - peer.forgotten < self.each {
            return ledger.in_flight().saturating_sub(self.forgotten) < self.all;
        }
        let arrived = ledger.arrived_of(number);
        if arrived != peer.arrived {
            (peer.arrived, peer.since) = (arrived, Instant::now());
        } else if peer.since.elapsed() > LOST {
            self.forgotten += in_flight - peer.forgotten;
            peer.forgotten = in_flight;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_with_a_full_window_is_passed_over_and_a_flood_has_none() {
        let (ledger, shape) = (Ledger::new(1, 3), Shape::full(2, 12));
        let mut round_robin = RoundRobin::new(shape, 3, false);
        // Two bursts of the first peer fill its window of four.
        ledger.send(0, 4);
        assert_eq!(
            [round_robin.next(&ledger), round_robin.next(&ledger), round_robin.next(&ledger)],
            [Some(1), Some(2), Some(1)]
        );
        for peer in [1, 2] {
            ledger.send(peer, 4);
        }
        assert_eq!(round_robin.next(&ledger), None);
        // All packets of the last peer count as arrived, or as lost before its last one.
        ledger.arrived(1, 2, 3);
        assert_eq!(round_robin.next(&ledger), Some(2));
        let mut flood = RoundRobin::new(shape, 3, true);
        assert_eq!([flood.next(&ledger), flood.next(&ledger)], [Some(0), Some(1)]);
        assert_eq!(RoundRobin::new(shape, 0, true).next(&ledger), None);
    }
}
