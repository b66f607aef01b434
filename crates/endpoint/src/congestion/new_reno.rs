//! Congestion avoidance of RFC 5681: a segment more each round trip, half of it after a loss.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes delivered since the window grew last.
    counted: u64,
}

impl NewReno {
    pub(super) fn grow(&mut self, window: u64, bytes: u64, mss: u64) -> u64 {
        self.counted += bytes;
        if self.counted < window {
            return window;
        }
        self.counted -= window;
        window + mss
    }

    pub(super) fn reduce(&mut self, flight: u64) -> u64 {
        self.counted = 0;
        flight / 2
    }
}
