//! How much may be in flight: slow start (RFC 5681, counted in bytes), then CUBIC or NewReno.
//!
//! All is in bytes, nanoseconds and integers. A window that is not used does not grow (RFC 7661).

mod cubic;
mod new_reno;
mod slow_start;

use cubic::Cubic;
use new_reno::NewReno;
use slow_start::SlowStart;

/// How a connection avoids congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno (RFC 6582), the yardstick: a loss on a long path costs it minutes.
    NewReno,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Bytes that are delivered and were not before.
    pub(crate) bytes: u64,
    /// Payload bytes of a full segment.
    pub(crate) mss: u64,
    /// Most bytes that were in flight during this round trip and the one before.
    pub(crate) flight: u64,
    pub(crate) now: u64,
    /// Smoothed round trip time; 0 before the first sample.
    pub(crate) rtt: u64,
    /// The least round trip time; 0 before the first sample.
    pub(crate) least: u64,
    /// The round trip time of what this acknowledgement delivered, if that was sent once.
    pub(crate) sample: Option<u64>,
}

/// The congestion window of a connection. A copy of it is all that there is to restore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window: u64,
    threshold: u64,
    slow_start: SlowStart,
    avoidance: Avoidance,
    /// When something was acknowledged last.
    acknowledged_at: u64,
}

#[derive(Clone, Copy, Debug)]
enum Avoidance {
    Cubic(Cubic),
    NewReno(NewReno),
}

impl Avoidance {
    /// Time in which the window does not grow by it does not count.
    fn wait(&mut self, elapsed: u64) {
        if let Self::Cubic(cubic) = self {
            cubic.wait(elapsed);
        }
    }
}

/// RFC 6928.
fn initial_window(mss: u64) -> u64 {
    (10 * mss).min((2 * mss).max(14_600))
}

impl Congestion {
    pub(crate) fn new(control: CongestionControl, mss: u64) -> Self {
        let avoidance = match control {
            CongestionControl::Cubic => Avoidance::Cubic(Cubic::default()),
            CongestionControl::NewReno => Avoidance::NewReno(NewReno::default()),
        };
        Self {
            window: initial_window(mss),
            threshold: u64::MAX,
            slow_start: SlowStart::default(),
            avoidance,
            acknowledged_at: 0,
        }
    }

    /// Returns the bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Returns the window above which it grows slowly; `u64::MAX` until slow start has
    /// ended.
    pub(crate) fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Something was delivered, and no loss is being repaired.
    pub(crate) fn on_ack(&mut self, acknowledged: Acknowledged) {
        let Acknowledged { mut bytes, mss, flight, now, least, sample, .. } = acknowledged;
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.acknowledged_at, now));
        if self.threshold == u64::MAX && sample.is_some_and(|sample| self.slow_start.ends(sample, least, now))
        {
            self.threshold = self.window;
        }
        if self.window < self.threshold {
            self.avoidance.wait(elapsed);
            if self.window >= 2 * flight.max(mss) {
                return;
            }
            // One acknowledgement stands for many segments where the receiver joins them, so all bytes count.
            let growth = bytes.min(self.threshold - self.window);
            self.window += growth;
            bytes -= growth;
        }
        if bytes == 0 {
            return;
        }
        let is_used = self.window <= flight + (4 * mss).max(flight / 8);
        match &mut self.avoidance {
            avoidance if !is_used => avoidance.wait(elapsed),
            Avoidance::Cubic(cubic) => self.window = cubic.grow(self.window, bytes, &acknowledged),
            Avoidance::NewReno(reno) => self.window = reno.grow(self.window, bytes, mss),
        }
    }

    /// Something is lost, the first since the last recovery. `flight` is what was in flight.
    pub(crate) fn on_loss(&mut self, flight: u64, mss: u64) {
        self.reduce(flight, mss, false);
        self.window = self.threshold;
    }

    /// The retransmission timer has expired. `is_first`: for the first time since something was delivered.
    pub(crate) fn on_timeout(&mut self, flight: u64, mss: u64, is_first: bool) {
        if is_first {
            self.reduce(flight, mss, true);
        }
        self.window = mss;
    }

    /// Nothing was in flight for this many retransmission timeouts: the path may be another one by now (RFC
    /// 5681, section 4.1). Halved for each of them, as in Linux.
    pub(crate) fn on_idle(&mut self, timeouts: u64, mss: u64) {
        self.threshold = self.threshold.max(self.window / 4 * 3);
        let least = self.window.min(initial_window(mss));
        self.window = (self.window >> timeouts.min(63)).max(least);
    }

    /// Takes a reduction back: all is what it was before, but the window may be larger by now.
    pub(crate) fn restore(&mut self, before: Self) {
        *self = Self {
            window: self.window.max(before.window),
            threshold: self.threshold.max(before.threshold),
            acknowledged_at: self.acknowledged_at,
            ..before
        };
    }

    /// Returns the nanoseconds that these bytes take where a window is spread over a round trip, and some
    /// more so that the window decides and not the pace.
    pub(crate) fn pace(&self, bytes: u64, rtt: u64) -> u64 {
        let window = if self.window < self.threshold { 2 * self.window } else { self.window / 5 * 6 };
        bytes.saturating_mul(rtt) / window.max(1)
    }

    fn reduce(&mut self, flight: u64, mss: u64, is_timeout: bool) {
        let flight = flight.min(self.window);
        let threshold = match &mut self.avoidance {
            Avoidance::Cubic(cubic) => cubic.reduce(flight, is_timeout),
            Avoidance::NewReno(reno) => reno.reduce(flight),
        };
        self.threshold = threshold.max(2 * mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const MSS: u64 = 1000;
    pub(super) const MS: u64 = 1_000_000;

    pub(super) const ACK: Acknowledged =
        Acknowledged { bytes: 0, mss: MSS, flight: 0, now: 0, rtt: 100 * MS, least: 100 * MS, sample: None };

    /// A round trip of 100 ms in which the whole window is used and acknowledged.
    pub(super) fn round(congestion: &mut Congestion, now: &mut u64) -> u64 {
        let flight = congestion.window();
        for _ in 0..10 {
            *now += 10 * MS;
            let bytes = flight / 10;
            congestion.on_ack(Acknowledged { bytes, flight, now: *now, ..ACK });
        }
        congestion.window()
    }

    #[test]
    fn the_window_doubles_a_round_trip_until_the_first_loss() {
        for control in [CongestionControl::Cubic, CongestionControl::NewReno] {
            let (mut congestion, mut now) = (Congestion::new(control, MSS), 0);
            assert_eq!(congestion.window(), 10_000);
            assert_eq!(
                (round(&mut congestion, &mut now), round(&mut congestion, &mut now)),
                (20_000, 40_000)
            );
            congestion.on_loss(40_000, MSS);
            assert_eq!(congestion.window(), congestion.threshold());
            let window = congestion.window();
            assert!((window + 500..window + 2000).contains(&round(&mut congestion, &mut now)));
        }
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_counts_once() {
        for control in [CongestionControl::Cubic, CongestionControl::NewReno] {
            let mut congestion = Congestion::new(control, MSS);
            congestion.on_timeout(10_000, MSS, true);
            let threshold = congestion.threshold();
            congestion.on_timeout(1000, MSS, false);
            assert_eq!((congestion.window(), congestion.threshold()), (MSS, threshold));
            for _ in 0..9 {
                congestion.on_loss(0, MSS);
            }
            assert_eq!(congestion.window(), 2 * MSS);
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        for control in [CongestionControl::Cubic, CongestionControl::NewReno] {
            for has_loss in [false, true] {
                let (mut congestion, mut now) = (Congestion::new(control, MSS), 0);
                if has_loss {
                    congestion.on_loss(10_000, MSS);
                }
                let window = congestion.window();
                for _ in 0..1000 {
                    now += 10 * MS;
                    congestion.on_ack(Acknowledged { bytes: MSS, now, ..ACK });
                }
                assert_eq!(congestion.window(), window, "{control:?} {has_loss}");
            }
        }
    }

    #[test]
    fn an_idle_time_halves_the_window_down_to_the_initial_one_and_keeps_the_threshold() {
        let mut congestion = Congestion::new(CongestionControl::Cubic, MSS);
        congestion.on_loss(10_000, MSS);
        congestion.on_idle(1, MSS);
        assert_eq!((congestion.window(), congestion.threshold()), (7000, 7000));
        congestion.window = 800 * MSS;
        congestion.on_idle(2, MSS);
        assert_eq!((congestion.window(), congestion.threshold()), (200 * MSS, 600 * MSS));
        congestion.on_idle(u64::MAX, MSS);
        assert_eq!((congestion.window(), congestion.threshold()), (10 * MSS, 600 * MSS));
        let mut now = 0;
        assert_eq!(round(&mut congestion, &mut now), 20 * MSS);
    }
}
