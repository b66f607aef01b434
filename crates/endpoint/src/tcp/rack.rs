//! Loss detection by time (RACK-TLP, RFC 8985): what was sent before something that was delivered is lost
//! when it is late by more than the reordering that is usual.

use super::rtt::Rtt;
use super::scoreboard::{Record, Scoreboard};

/// Recoveries after which the reordering window has its first size again.
const PERSIST: u8 = 16;
/// The greatest factor of the reordering window.
const MAX_FACTOR: u64 = 64;

/// State of the detection on one connection.
#[derive(Debug)]
pub(crate) struct Rack {
    /// When the latest of what is delivered was sent.
    sent_at: u64,
    /// Where that ends.
    end: u64,
    /// Its round trip time.
    rtt: u64,
    /// The end of the furthest that is delivered.
    furthest: u64,
    has_seen_reordering: bool,
    factor: u64,
    persist: u8,
    /// The next byte to send when a D-SACK widened the window: not again before it is acknowledged.
    dsack_round: Option<u64>,
}

impl Rack {
    pub(crate) fn new() -> Self {
        Self {
            sent_at: 0,
            end: 0,
            rtt: 0,
            furthest: 0,
            has_seen_reordering: false,
            factor: 1,
            persist: PERSIST,
            dsack_round: None,
        }
    }

    /// Records that a piece was delivered (RFC 8985, section 6.2, steps 1 to 3).
    ///
    /// `echo_is_old`: the acknowledgement echoes a timestamp from before the piece was sent again.
    pub(crate) fn delivered(&mut self, piece: &Record, now: u64, rtt: &Rtt, echo_is_old: bool) {
        if piece.end > self.furthest {
            self.furthest = piece.end;
        } else if piece.end < self.furthest && !piece.is_retransmitted() {
            self.has_seen_reordering = true;
        }
        let time = now.saturating_sub(piece.sent_at);
        if piece.is_retransmitted() && (echo_is_old || rtt.min().is_some_and(|min| time < min)) {
            return;
        }
        self.rtt = time;
        if is_after((piece.sent_at, piece.end), (self.sent_at, self.end)) {
            (self.sent_at, self.end) = (piece.sent_at, piece.end);
        }
    }

    /// Widens the reordering window after a needless retransmission (step 4).
    pub(crate) fn on_ack(&mut self, una: u64, next: u64, has_dsack: bool) {
        if self.dsack_round.is_some_and(|round| una >= round) {
            self.dsack_round = None;
        }
        if has_dsack && self.dsack_round.is_none() {
            self.dsack_round = Some(next);
            self.factor = (self.factor + 1).min(MAX_FACTOR);
            self.persist = PERSIST;
        }
    }

    /// A recovery has ended.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            (self.factor, self.persist) = (1, PERSIST);
        }
    }

    fn reordering_window(&self, rtt: &Rtt, in_recovery: bool, sacked_segments: u64) -> u64 {
        if !self.has_seen_reordering && (in_recovery || sacked_segments >= 3) {
            return 0;
        }
        let window = rtt.min().unwrap_or(0) / 4 * self.factor;
        window.min(rtt.smoothed().unwrap_or(window))
    }

    /// Marks what is lost (step 5). Returns the bytes, and when to look again.
    pub(crate) fn detect(
        &self,
        board: &mut Scoreboard,
        rtt: &Rtt,
        in_recovery: bool,
        mss: u64,
        now: u64,
    ) -> (u64, Option<u64>) {
        if !board.is_out_of_order() {
            return (0, None);
        }
        let allowed = self.rtt + self.reordering_window(rtt, in_recovery, board.sacked() / mss.max(1));
        let mut again = None;
        let bytes = board.mark_lost(|record| {
            if !is_after((self.sent_at, self.end), (record.sent_at, record.end)) {
                return false;
            }
            let deadline = record.sent_at + allowed;
            if deadline > now {
                again = again.max(Some(deadline));
            }
            deadline <= now
        });
        (bytes, again)
    }

    /// Marks what is lost when the retransmission timer has expired (section 6.3).
    pub(crate) fn timed_out(&self, board: &mut Scoreboard, rtt: &Rtt, una: u64, now: u64) {
        let allowed = self.rtt + self.reordering_window(rtt, false, 0);
        board.mark_lost(|record| record.start == una || record.sent_at + allowed <= now);
    }
}

/// Reports whether `a` was sent after `b`: each is a time and where it ends.
fn is_after(a: (u64, u64), b: (u64, u64)) -> bool {
    a > b
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Four segments, sent a millisecond apart from the first millisecond on; 40 ms round trip.
    fn sent() -> (Rack, Rtt, Scoreboard) {
        let (mut rtt, mut board) = (Rtt::new(), Scoreboard::default());
        rtt.sample(40 * MS, 0);
        for n in 0..4 {
            board.push(1000 * n, 1000 * (n + 1), (n + 1) * MS);
        }
        (Rack::new(), rtt, board)
    }

    fn sack(rack: &mut Rack, rtt: &Rtt, board: &mut Scoreboard, start: u64, end: u64, now: u64) {
        board.sack(start, end, |piece| rack.delivered(piece, now, rtt, false));
    }

    #[test]
    fn what_was_overtaken_is_lost_after_a_quarter_of_the_round_trip() {
        let (mut rack, rtt, mut board) = sent();
        sack(&mut rack, &rtt, &mut board, 1000, 2000, 42 * MS);
        // Sent at 1 ms; 40 ms and a quarter of it.
        assert_eq!(rack.detect(&mut board, &rtt, false, 1000, 42 * MS), (0, Some(51 * MS)));
        assert_eq!(rack.detect(&mut board, &rtt, false, 1000, 51 * MS), (1000, None));
        assert_eq!(board.next_lost(9999), Some((0, 1000)));
    }

    #[test]
    fn three_segments_or_a_recovery_leave_no_time_until_reordering_was_seen() {
        let (mut rack, rtt, mut board) = sent();
        sack(&mut rack, &rtt, &mut board, 1000, 4000, 44 * MS);
        assert_eq!(rack.detect(&mut board, &rtt, false, 1000, 44 * MS), (1000, None));
        let mut second = sent().2;
        sack(&mut rack, &rtt, &mut second, 0, 1000, 45 * MS);
        assert!(rack.has_seen_reordering);
        let (_, _, mut third) = sent();
        sack(&mut rack, &rtt, &mut third, 1000, 4000, 46 * MS);
        assert!(rack.detect(&mut third, &rtt, true, 1000, 46 * MS).1.is_some());
    }

    #[test]
    fn a_lost_retransmission_is_found_by_what_was_sent_after_it() {
        let (mut rack, rtt, mut board) = sent();
        sack(&mut rack, &rtt, &mut board, 1000, 4000, 44 * MS);
        rack.detect(&mut board, &rtt, false, 1000, 44 * MS);
        board.retransmitted(0, 1000, 44 * MS);
        board.push(4000, 5000, 45 * MS);
        sack(&mut rack, &rtt, &mut board, 4000, 5000, 85 * MS);
        assert_eq!(rack.detect(&mut board, &rtt, true, 1000, 85 * MS), (1000, None));
        board.check(0, 5000);
    }

    #[test]
    fn needless_retransmissions_widen_the_window_once_a_round_trip() {
        let (mut rack, rtt, _) = sent();
        rack.has_seen_reordering = true;
        for una in [0, 10, 100] {
            rack.on_ack(una, una + 100, true);
        }
        assert_eq!(rack.reordering_window(&rtt, true, 9), 30 * MS);
        (0..PERSIST).for_each(|_| rack.recovered());
        assert_eq!(rack.reordering_window(&rtt, true, 9), 10 * MS);
        (0..999).for_each(|n| rack.on_ack(1000 * n, 1000 * n, true));
        assert_eq!(rack.reordering_window(&rtt, true, 9), 40 * MS, "never more than a round trip");
    }
}
