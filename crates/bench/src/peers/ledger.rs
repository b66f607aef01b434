//! Counts numbered packets by lane. Each lane has one sending and one receiving thread; any thread may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The packet counts of one measurement.
#[derive(Debug)]
pub(super) struct Ledger {
    run: u32,
    lanes: Vec<Lane>,
    sent: AtomicU64,
    passed: AtomicU64,
    arrived: AtomicU64,
}

#[derive(Debug, Default)]
struct Lane {
    sent: AtomicU64,
    arrived: AtomicU64,
    /// The highest number received, plus one.
    next: AtomicU64,
    displaced: AtomicU64,
}

/// Totals over all lanes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Packets that arrived after a higher number of the same lane.
    pub(super) displaced: u64,
}

impl Ledger {
    /// Creates a ledger for `lanes` lanes. Packets of another run are ignored.
    pub(super) fn new(run: u32, lanes: usize) -> Self {
        let lanes = std::iter::repeat_with(Lane::default).take(lanes).collect();
        Self { run, lanes, sent: AtomicU64::new(0), passed: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }

    /// Returns the run number that packets of this run carry.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Counts the next `count` packets of a lane as sent, and returns the number of the first one.
    pub(super) fn send(&self, lane: usize, count: u64) -> u64 {
        self.sent.fetch_add(count, Relaxed);
        self.lanes.get(lane).map_or(0, |lane| lane.sent.fetch_add(count, Relaxed))
    }

    /// Records the arrival of a packet.
    pub(super) fn arrived(&self, run: u32, lane: usize, number: u64) {
        let Some(lane) = self.lanes.get(lane).filter(|_| run == self.run) else { return };
        lane.arrived.fetch_add(1, Relaxed);
        self.arrived.fetch_add(1, Relaxed);
        let next = lane.next.load(Relaxed);
        if number < next {
            lane.displaced.fetch_add(1, Relaxed);
        } else {
            lane.next.store(number + 1, Relaxed);
            self.passed.fetch_add(number + 1 - next, Relaxed);
        }
    }

    /// Estimates the packets in flight over all lanes: a lost packet is no longer in flight once a later one
    /// of its lane has arrived.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.passed.load(Relaxed))
    }

    /// Estimates the packets in flight of one lane.
    pub(super) fn in_flight_of(&self, lane: usize) -> u64 {
        let Some(lane) = self.lanes.get(lane) else { return 0 };
        lane.sent.load(Relaxed).saturating_sub(lane.next.load(Relaxed))
    }

    /// Returns how many packets of a lane have arrived so far.
    pub(super) fn arrived_of(&self, lane: usize) -> u64 {
        self.lanes.get(lane).map_or(0, |lane| lane.arrived.load(Relaxed))
    }

    /// Returns how many packets have arrived so far.
    pub(super) fn arrived_so_far(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Returns the totals over all lanes so far.
    pub(super) fn totals(&self) -> Totals {
        let sum = |of: fn(&Lane) -> &AtomicU64| self.lanes.iter().map(|lane| of(lane).load(Relaxed)).sum();
        Totals {
            sent: sum(|lane| &lane.sent),
            arrived: sum(|lane| &lane.arrived),
            displaced: sum(|lane| &lane.displaced),
        }
    }

    /// Returns the packets received so far, by lane.
    pub(super) fn arrived_by_lane(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.arrived.load(Relaxed)).collect()
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
        assert_eq!((ledger.in_flight(), ledger.arrived_by_lane()), (1, vec![4, 0]));
    }
}
