//! Counts numbered packets by peer. Each peer has one sending and one receiving thread; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The packet counts of one measurement.
#[derive(Debug)]
pub(super) struct Ledger {
    run: u32,
    peers: Vec<Count>,
    sent: AtomicU64,
    passed: AtomicU64,
    arrived: AtomicU64,
}

#[derive(Debug, Default)]
struct Count {
    sent: AtomicU64,
    arrived: AtomicU64,
    /// The highest number received, plus one.
    next: AtomicU64,
    displaced: AtomicU64,
}

/// Totals over all peers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Packets that arrived after a higher number of the same peer.
    pub(super) displaced: u64,
}

impl Ledger {
    /// Creates a ledger for `peers` peers. Packets of another run are ignored.
    pub(super) fn new(run: u32, peers: usize) -> Self {
        let peers = std::iter::repeat_with(Count::default).take(peers).collect();
        Self { run, peers, sent: AtomicU64::new(0), passed: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }

    /// Returns the run number that packets of this run carry.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Counts the next `count` packets of a peer as sent, and returns the number of the first one.
    pub(super) fn send(&self, peer: usize, count: u64) -> u64 {
        self.sent.fetch_add(count, Relaxed);
        self.peers.get(peer).map_or(0, |peer| peer.sent.fetch_add(count, Relaxed))
    }

    /// Records the arrival of a packet.
    pub(super) fn arrived(&self, run: u32, peer: usize, number: u64) {
        let Some(peer) = self.peers.get(peer).filter(|_| run == self.run) else { return };
        peer.arrived.fetch_add(1, Relaxed);
        self.arrived.fetch_add(1, Relaxed);
        let next = peer.next.load(Relaxed);
        if number < next {
            peer.displaced.fetch_add(1, Relaxed);
        } else {
            peer.next.store(number + 1, Relaxed);
            self.passed.fetch_add(number + 1 - next, Relaxed);
        }
    }

    /// Estimates the packets in flight over all peers: a lost packet is no longer in flight once a later one
    /// of its peer has arrived.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.passed.load(Relaxed))
    }

    /// Estimates the packets in flight of one peer.
    pub(super) fn in_flight_of(&self, peer: usize) -> u64 {
        let Some(peer) = self.peers.get(peer) else { return 0 };
        peer.sent.load(Relaxed).saturating_sub(peer.next.load(Relaxed))
    }

    /// Returns how many packets of a peer have arrived so far.
    pub(super) fn arrived_of(&self, peer: usize) -> u64 {
        self.peers.get(peer).map_or(0, |peer| peer.arrived.load(Relaxed))
    }

    /// Returns how many packets have arrived so far.
    pub(super) fn arrived_so_far(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Returns the totals over all peers so far.
    pub(super) fn totals(&self) -> Totals {
        let sum = |of: fn(&Count) -> &AtomicU64| self.peers.iter().map(|peer| of(peer).load(Relaxed)).sum();
        Totals {
            sent: sum(|peer| &peer.sent),
            arrived: sum(|peer| &peer.arrived),
            displaced: sum(|peer| &peer.displaced),
        }
    }

    /// Returns the packets received so far, by peer.
    pub(super) fn arrived_by_peer(&self) -> Vec<u64> {
        self.peers.iter().map(|peer| peer.arrived.load(Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_displaced_or_of_another_run_is_told_apart() {
        let ledger = Ledger::new(7, 2);
        assert_eq!((ledger.send(0, 4), ledger.send(0, 1), ledger.send(1, 1)), (0, 4, 0));
        for number in [0, 2, 1] {
            ledger.arrived(7, 0, number);
        }
        ledger.arrived(6, 0, 3);
        ledger.arrived(7, 2, 0);
        assert_eq!(ledger.totals(), Totals { sent: 6, arrived: 3, displaced: 1 });
        assert_eq!((ledger.in_flight(), ledger.in_flight_of(0), ledger.in_flight_of(1)), (3, 2, 1));
        // The one before it is lost, and thus no longer in flight.
        ledger.arrived(7, 0, 4);
        assert_eq!((ledger.in_flight(), ledger.arrived_by_peer()), (1, vec![4, 0]));
    }
}
