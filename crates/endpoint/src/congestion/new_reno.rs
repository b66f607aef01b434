//! Slow start and congestion avoidance (RFC 5681), counted in bytes (RFC 3465).

use super::{Acknowledged, Congestion};

/// The classic controller.
#[derive(Debug)]
pub(crate) struct NewReno {
    window: u64,
    threshold: u64,
    /// Bytes delivered since the window last grew in congestion avoidance.
    counted: u64,
}

impl NewReno {
    pub(crate) fn new(mss: u64) -> Self {
        // RFC 6928.
        Self { window: (10 * mss).min((2 * mss).max(14_600)), threshold: u64::MAX, counted: 0 }
    }

    fn reduce(&mut self, flight: u64, mss: u64) {
        self.threshold = (flight / 2).max(2 * mss);
        self.counted = 0;
    }
}

impl Congestion for NewReno {
    fn window(&self) -> u64 {
        self.window
    }

    fn threshold(&self) -> u64 {
        self.threshold
    }

    fn on_ack(&mut self, Acknowledged { mut bytes, mss, flight }: Acknowledged) {
        if self.window < self.threshold {
            // One acknowledgement stands for many segments where the receiver joins them, so all bytes count.
            if self.window < 2 * flight.max(mss) {
                let growth = bytes.min(self.threshold - self.window);
                self.window += growth;
                bytes -= growth;
            } else {
                return;
            }
        }
        if bytes == 0 || self.window > flight + 4 * mss {
            return;
        }
        self.counted += bytes;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window += mss;
        }
    }

    fn on_loss(&mut self, flight: u64, mss: u64) {
        self.reduce(flight, mss);
        self.window = self.threshold;
    }

    fn on_timeout(&mut self, flight: u64, mss: u64, is_first: bool) {
        if is_first {
            self.reduce(flight, mss);
        }
        self.window = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_doubles_a_round_trip_then_grows_by_a_segment() {
        let mut reno = NewReno::new(1000);
        assert_eq!(reno.window(), 10_000);
        let round = |reno: &mut NewReno| {
            let flight = reno.window();
            for _ in 0..10 {
                reno.on_ack(Acknowledged { bytes: flight / 10, mss: 1000, flight });
            }
            reno.window()
        };
        assert_eq!((round(&mut reno), round(&mut reno)), (20_000, 40_000));
        reno.on_loss(40_000, 1000);
        assert_eq!((reno.window(), reno.threshold()), (20_000, 20_000));
        assert_eq!(round(&mut reno), 21_000);
        reno.on_timeout(21_000, 1000, true);
        reno.on_timeout(1000, 1000, false);
        assert_eq!((reno.window(), reno.threshold()), (1000, 10_500));
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(1000);
        for _ in 0..100 {
            reno.on_ack(Acknowledged { bytes: 1000, mss: 1000, flight: 1000 });
        }
        assert_eq!(reno.window(), 10_000);
    }
}
