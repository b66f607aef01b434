//! What arrived of numbered packets, lane by lane. Each lane has one writer; everybody may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The packets of one measurement.
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
    /// The number after the highest that arrived.
    next: AtomicU64,
    displaced: AtomicU64,
}

/// Totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) arrived: u64,
    /// Arrived after a packet with a higher number of the same lane.
    pub(super) displaced: u64,
}

impl Ledger {
    /// For so many lanes. What is left over from another run does not count.
    pub(super) fn new(run: u32, lanes: usize) -> Self {
        let lanes = std::iter::repeat_with(Lane::default).take(lanes).collect();
        Self { run, lanes, sent: AtomicU64::new(0), passed: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }

    /// The number that packets of this run carry.
    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// The numbers of the next `count` packets of a lane begin here: they count as sent.
    pub(super) fn send(&self, lane: usize, count: u64) -> u64 {
        self.sent.fetch_add(count, Relaxed);
        self.lanes.get(lane).map_or(0, |lane| lane.sent.fetch_add(count, Relaxed))
    }

    /// A packet arrived.
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

    /// Packets that are on their way, as far as those behind them tell: what is lost is not, once another of its lane
    /// has arrived.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.passed.load(Relaxed))
    }

    /// The same of one lane.
    pub(super) fn in_flight_of(&self, lane: usize) -> u64 {
        let Some(lane) = self.lanes.get(lane) else { return 0 };
        lane.sent.load(Relaxed).saturating_sub(lane.next.load(Relaxed))
    }

    /// How many packets of a lane arrived so far.
    pub(super) fn arrived_of(&self, lane: usize) -> u64 {
        self.lanes.get(lane).map_or(0, |lane| lane.arrived.load(Relaxed))
    }

    /// How many packets arrived so far.
    pub(super) fn arrived_so_far(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// What became of all lanes together so far.
    pub(super) fn totals(&self) -> Totals {
        let sum = |of: fn(&Lane) -> &AtomicU64| self.lanes.iter().map(|lane| of(lane).load(Relaxed)).sum();
        Totals {
            sent: sum(|lane| &lane.sent),
            arrived: sum(|lane| &lane.arrived),
            displaced: sum(|lane| &lane.displaced),
        }
    }

    /// What arrived so far, lane by lane.
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
        // The one before it is lost: it is not on its way any more.
        ledger.arrived(7, 0, 4);
        assert_eq!((ledger.in_flight(), ledger.arrived_by_lane()), (1, vec![4, 0]));
    }
}
