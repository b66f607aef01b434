//! Packets under way, counted by lane, and the windows that bound them.
//!
//! A lane is a peer that has a sender and a receiver here, or a packet thread of a gateway that counts what
//! it has handled. A sender sends as much as arrives and no more than buffers hold, as TCP does. So every
//! loss is caused by what is measured.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Pause of a sender while the windows are full.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// The packet counts of one measurement. Each lane has one receiving thread; any thread may read.
#[derive(Debug)]
pub(crate) struct Ledger {
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

impl Ledger {
    /// Creates a ledger. Packets of another run are ignored.
    pub(crate) fn new(run: u32, lanes: usize) -> Self {
        let lanes = std::iter::repeat_with(Lane::default).take(lanes).collect();
        Self { run, lanes, sent: AtomicU64::new(0), passed: AtomicU64::new(0), arrived: AtomicU64::new(0) }
    }

    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// Counts the next `count` packets of a lane as sent, and returns the number of the first one.
    pub(crate) fn send(&self, lane: usize, count: u64) -> u64 {
        self.sent.fetch_add(count, Relaxed);
        self.lanes.get(lane).map_or(0, |lane| lane.sent.fetch_add(count, Relaxed))
    }

    pub(crate) fn arrived(&self, run: u32, lane: usize, number: u64) {
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

    /// Records that `count` packets of a lane have arrived so far, without their numbers.
    pub(crate) fn reached(&self, lane: usize, count: u64) {
        let more = count - self.lanes[lane].arrived.swap(count, Relaxed).min(count);
        self.lanes[lane].next.store(count, Relaxed);
        self.arrived.fetch_add(more, Relaxed);
        self.passed.fetch_add(more, Relaxed);
    }

    /// Estimates the packets in flight over all lanes: a lost packet is no longer in flight once a later one
    /// of its lane has arrived.
    fn in_flight(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.passed.load(Relaxed))
    }

    pub(crate) fn sent_so_far(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    pub(crate) fn arrived_so_far(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    pub(crate) fn arrived_by_lane(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.arrived.load(Relaxed)).collect()
    }

    /// Returns the packets that arrived after a later one of their lane.
    pub(crate) fn displaced(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.displaced.load(Relaxed)).sum()
    }

    /// Waits until all packets have arrived, or none arrives for `lost`. `look` may record arrivals.
    pub(crate) fn drain(&self, lost: Duration, mut look: impl FnMut() -> Result<()>) -> Result<()> {
        let (mut arrived, mut since) = (0, Instant::now());
        while since.elapsed() < lost {
            look()?;
            let now = self.arrived_so_far();
            if now >= self.sent_so_far() {
                break;
            }
            if now != arrived {
                (arrived, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Bounds of the packets in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// All lanes together.
    pub(crate) all: u64,
    /// Each lane, so that one with losses does not block the others.
    pub(crate) each: u64,
    /// Time without an arrival after which packets in flight count as lost.
    pub(crate) lost: Duration,
}

/// The windows of one sending thread, and the order of its lanes. A flood has no bounds.
pub(crate) struct Windows {
    bounds: Option<Bounds>,
    lanes: Vec<Window>,
    /// Packets given up as lost, all lanes together.
    forgotten: u64,
    next: usize,
}

struct Window {
    arrived: u64,
    since: Instant,
    /// Packets in flight that were given up as lost.
    forgotten: u64,
}

impl Windows {
    pub(crate) fn new(lanes: usize, bounds: Option<Bounds>) -> Self {
        let window = || Window { arrived: 0, since: Instant::now(), forgotten: 0 };
        let lanes = std::iter::repeat_with(window).take(lanes).collect();
        Self { bounds, lanes, forgotten: 0, next: 0 }
    }

    /// Returns the next lane that may send, in turn; `None` if the windows are full, and the sender should
    /// pause.
    pub(crate) fn next(&mut self, ledger: &Ledger) -> Option<usize> {
        for _ in 0..self.lanes.len() {
            let lane = self.next;
            self.next = (lane + 1) % self.lanes.len();
            if self.has_room(ledger, lane) {
                return Some(lane);
            }
        }
        None
    }

    pub(crate) fn has_room(&mut self, ledger: &Ledger, number: usize) -> bool {
        let (Some(Bounds { all, each, lost }), Some(lane)) = (self.bounds, ledger.lanes.get(number)) else {
            return true;
        };
        let in_flight = lane.sent.load(Relaxed).saturating_sub(lane.next.load(Relaxed));
        let window = &mut self.lanes[number];
        let still = window.forgotten.min(in_flight);
        self.forgotten -= window.forgotten - still;
        window.forgotten = still;
        if in_flight - window.forgotten < each {
            return ledger.in_flight().saturating_sub(self.forgotten) < all;
        }
        let arrived = lane.arrived.load(Relaxed);
        if arrived != window.arrived {
            (window.arrived, window.since) = (arrived, Instant::now());
        } else if window.since.elapsed() > lost {
            self.forgotten += in_flight - window.forgotten;
            window.forgotten = in_flight;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_with_a_full_window_is_passed_over_and_losses_open_it() {
        let bounds = |lost| Some(Bounds { all: 12, each: 4, lost });
        let ledger = Ledger::new(7, 3);
        let mut windows = Windows::new(3, bounds(Duration::from_secs(60)));
        assert_eq!((ledger.send(0, 3), ledger.send(0, 1)), (0, 3));
        assert_eq!([(); 3].map(|()| windows.next(&ledger)), [Some(1), Some(2), Some(1)]);
        ledger.send(1, 4);
        ledger.send(2, 4);
        assert_eq!(windows.next(&ledger), None);
        // All packets of the last lane count as arrived, or as lost before its last one.
        ledger.arrived(7, 2, 3);
        ledger.arrived(6, 0, 3);
        assert_eq!((windows.next(&ledger), ledger.arrived_so_far()), (Some(2), 1));
        ledger.arrived(7, 2, 1);
        ledger.reached(0, 2);
        assert_eq!((ledger.displaced(), ledger.arrived_by_lane()), (1, vec![2, 0, 2]));
        let mut impatient = Windows::new(3, bounds(Duration::ZERO));
        assert!(!impatient.has_room(&ledger, 1) && impatient.has_room(&ledger, 1));
        assert!(Windows::new(3, None).has_room(&ledger, 1));
    }
}
