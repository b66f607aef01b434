//! A loss is being repaired: how much is sent meanwhile (PRR, RFC 9937), and whether it was one.

use crate::congestion::Congestion;

/// What is being repaired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// The next byte to send when the loss was found: the recovery ends when this is acknowledged.
    pub(super) end: u64,
    /// Whether the retransmission timer found it.
    pub(super) by_timeout: bool,
    /// RecoverFS, prr_delivered and prr_out: bytes in flight at the start; delivered and sent since then.
    flight: u64,
    delivered: u64,
    sent: u64,
    /// Bytes that may be sent now.
    room: u64,
}

impl Recovery {
    pub(super) fn new(end: u64, by_timeout: bool, flight: u64) -> Self {
        Self { end, by_timeout, flight, delivered: 0, sent: 0, room: 0 }
    }

    /// Returns the bytes that may be sent now, unless the congestion window decides.
    pub(super) fn room(&self) -> Option<u64> {
        (!self.by_timeout).then_some(self.room)
    }

    /// `is_safe`: the acknowledgement advances, and tells of no further loss.
    pub(super) fn on_ack(&mut self, bytes: u64, in_flight: u64, threshold: u64, is_safe: bool, mss: u64) {
        if bytes == 0 {
            return;
        }
        self.delivered += bytes;
        self.room = if in_flight > threshold {
            let share = u128::from(self.delivered) * u128::from(threshold);
            let most = share.div_ceil(u128::from(self.flight.max(1)));
            u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(self.sent)
        } else {
            let room = self.delivered.saturating_sub(self.sent).max(bytes) + if is_safe { mss } else { 0 };
            room.min(threshold - in_flight)
        };
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.room = self.room.saturating_sub(bytes);
    }
}

/// What a reduction of the congestion window has changed, until the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    pub(super) before: Congestion,
    /// What was in flight then.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Bytes sent again since then that the peer has not reported as duplicates; `None`: nothing yet.
    pub(super) again: Option<u64>,
    /// The first acknowledgement of something that was sent again is still to come (RFC 3522).
    pub(super) is_open: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the peer get `bytes` in segments, and sends what is allowed. Returns what was sent.
    fn deliver(recovery: &mut Recovery, in_flight: &mut u64, bytes: u64, threshold: u64) -> u64 {
        let before = recovery.sent;
        for _ in 0..bytes / 1000 {
            *in_flight -= 1000;
            recovery.on_ack(1000, *in_flight, threshold, true, 1000);
            let whole = recovery.room - recovery.room % 1000;
            recovery.on_sent(whole);
            *in_flight += whole;
        }
        recovery.sent - before
    }

    #[test]
    fn seven_are_sent_for_ten_until_the_flight_is_the_threshold() {
        // 100 segments, one of which is lost; the others arrive one by one.
        let mut recovery = Recovery::new(100_000, false, 100_000);
        let mut in_flight = 99_000;
        let mut sent = 0;
        for tenth in 1..=9 {
            sent += deliver(&mut recovery, &mut in_flight, 10_000, 70_000);
            assert!((7 * tenth * 1000 - 1000..=7 * tenth * 1000 + 1000).contains(&sent), "{sent}");
        }
        deliver(&mut recovery, &mut in_flight, 9_000, 70_000);
        assert!((69_000..=71_000).contains(&in_flight), "{in_flight}");
    }

    #[test]
    fn what_a_burst_of_losses_took_is_made_up_slowly() {
        // 60 of 100 are lost: less is in flight than may be.
        let mut recovery = Recovery::new(100_000, false, 100_000);
        let mut in_flight = 40_000;
        // Twice what arrives, as in slow start, and never beyond the threshold.
        assert_eq!(deliver(&mut recovery, &mut in_flight, 10_000, 70_000), 20_000);
        deliver(&mut recovery, &mut in_flight, 40_000, 70_000);
        assert_eq!(in_flight, 70_000);
    }

    #[test]
    fn an_acknowledgement_of_nothing_allows_nothing() {
        let mut recovery = Recovery::new(1000, false, 0);
        recovery.on_ack(0, 0, 70_000, true, 1000);
        assert_eq!(recovery.room(), Some(0));
        recovery.on_ack(u64::MAX, 70_001, 70_000, true, 1000);
        assert_eq!(Recovery::new(1000, true, 0).room(), None);
    }
}
