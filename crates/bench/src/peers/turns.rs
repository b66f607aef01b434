//! Order of sending: round-robin with windows.

use std::time::{Duration, Instant};

use super::ledger::Ledger;
use super::swarm::Shape;

/// Time without an arrival after which packets in flight count as lost.
pub(super) const LOST: Duration = Duration::from_millis(300);
/// Pause of a sender while the windows are full.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Lanes in turn, with one window for all lanes together and one for each lane, so that a lane with losses
/// does not block the others. A flood has no windows.
pub(super) struct Turns {
    is_flood: bool,
    all: u64,
    each: u64,
    lanes: Vec<Lane>,
    /// Packets given up as lost, all lanes together.
    forgotten: u64,
    next: usize,
}

struct Lane {
    arrived: u64,
    since: Instant,
    /// Packets in flight that were given up as lost.
    forgotten: u64,
}

impl Turns {
    pub(super) fn new(shape: Shape, lanes: usize, is_flood: bool) -> Self {
        let each = (shape.window / lanes.max(1) as u64).max(2 * shape.burst);
        let lane = || Lane { arrived: 0, since: Instant::now(), forgotten: 0 };
        let lanes = std::iter::repeat_with(lane).take(lanes).collect();
        Self { is_flood, all: shape.window, each, lanes, forgotten: 0, next: 0 }
    }

    /// Returns the next lane that may send a burst; `None` if the windows are full, and the sender should
    /// pause.
    pub(super) fn next(&mut self, ledger: &Ledger) -> Option<usize> {
        for _ in 0..self.lanes.len() {
            let lane = self.next;
            self.next = (lane + 1) % self.lanes.len();
            if self.is_flood || self.has_room(ledger, lane) {
                return Some(lane);
            }
        }
        None
    }

    fn has_room(&mut self, ledger: &Ledger, number: usize) -> bool {
        let in_flight = ledger.in_flight_of(number);
        let lane = &mut self.lanes[number];
        let still = lane.forgotten.min(in_flight);
        self.forgotten -= lane.forgotten - still;
        lane.forgotten = still;
        if in_flight - lane.forgotten < self.each {
            return ledger.in_flight().saturating_sub(self.forgotten) < self.all;
        }
        let arrived = ledger.arrived_of(number);
        if arrived != lane.arrived {
            (lane.arrived, lane.since) = (arrived, Instant::now());
        } else if lane.since.elapsed() > LOST {
            self.forgotten += in_flight - lane.forgotten;
            lane.forgotten = in_flight;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_whose_window_is_full_is_passed_over_and_a_flood_has_none() {
        let (ledger, shape) = (Ledger::new(1, 3), Shape::full(2, 12));
        let mut turns = Turns::new(shape, 3, false);
        // Two bursts of the first lane fill its window of four.
        ledger.send(0, 4);
        assert_eq!(
            [turns.next(&ledger), turns.next(&ledger), turns.next(&ledger)],
            [Some(1), Some(2), Some(1)]
        );
        for lane in [1, 2] {
            ledger.send(lane, 4);
        }
        assert_eq!(turns.next(&ledger), None);
        // All packets of the last lane count as arrived, or as lost before its last one.
        ledger.arrived(1, 2, 3);
        assert_eq!(turns.next(&ledger), Some(2));
        let mut flood = Turns::new(shape, 3, true);
        assert_eq!([flood.next(&ledger), flood.next(&ledger)], [Some(0), Some(1)]);
        assert_eq!(Turns::new(shape, 0, true).next(&ledger), None);
    }
}
