//! The congestion window is reduced, and what was reduced for late packets is taken back.

use super::connection::{Connection, Deadline};
use super::recovery::{Recovery, Undo};
use crate::segment::Segment;

impl Connection {
    pub(super) fn enter_recovery(&mut self, outstanding: u64, delivered: u64) {
        if self.recovery.is_none() {
            let (una, next) = (self.una, self.next);
            if self.ecn.as_mut().is_none_or(|ecn| ecn.loss_reduces(una, next)) {
                self.remember(self.una);
                self.congestion.on_loss(outstanding.max(self.used()), self.mss());
            }
            let flight = self.board.in_flight() + self.board.lost() + delivered;
            self.recovery = Some(Recovery::new(self.next, false, flight));
            self.recoveries += 1;
            self.may_exceed = true;
        }
        self.clear(Deadline::TailProbe);
        self.tail_probe_due = false;
    }

    pub(super) fn enter_recovery_by_timeout(&mut self, outstanding: u64, is_first: bool) {
        if self.recovery.is_none() {
            self.remember(self.una);
        }
        self.congestion.on_timeout(outstanding, self.mss(), is_first);
        self.recovery = Some(Recovery::new(self.next, true, 0));
        self.may_exceed = true;
    }

    /// Reads what a segment says of marks. `outstanding` is what was in flight.
    pub(super) fn read_marks(&mut self, segment: &Segment<'_>, outstanding: u64) {
        let Some(ecn) = &mut self.ecn else { return };
        self.ack_at_once |= ecn.receive(segment);
        let reduces = outstanding > 0 && ecn.reduces(segment, self.una, self.next);
        if reduces && self.recovery.is_none() {
            self.undo = None;
            self.congestion.on_loss(outstanding, self.mss());
        }
    }

    /// Lets more be sent as the peer gets it.
    pub(super) fn during_recovery(&mut self, delivered: u64, is_safe: bool) {
        let (in_flight, threshold, mss) = (self.board.in_flight(), self.congestion.threshold(), self.mss());
        if let Some(recovery) = &mut self.recovery {
            recovery.on_ack(delivered, in_flight, threshold, is_safe, mss);
        }
    }

    fn remember(&mut self, start: u64) {
        let (before, end) = (self.congestion, self.next);
        self.undo = Some(Undo { before, start, end, again: None, is_open: true });
    }

    pub(super) fn sent_again(&mut self, bytes: u64) {
        if let Some(undo) = &mut self.undo {
            undo.again = Some(undo.again.unwrap_or(0) + bytes);
        }
    }

    /// Something that was sent again is acknowledged. Returns true if the timestamp proves that the peer has
    /// the original (RFC 3522).
    pub(super) fn is_original(&mut self, start: u64, echo_is_old: bool) -> bool {
        self.undo.as_mut().is_some_and(|undo| {
            start >= undo.start && start < undo.end && std::mem::take(&mut undo.is_open) && echo_is_old
        })
    }

    /// The peer reports a duplicate. Returns true if it had everything that was sent again.
    pub(super) fn had_everything(&mut self, duplicate: &std::ops::Range<u64>) -> bool {
        let Some(undo) = &mut self.undo else { return false };
        let Some(again) = &mut undo.again else { return false };
        if duplicate.start < undo.start || duplicate.end > undo.end {
            return false;
        }
        *again = again.saturating_sub(duplicate.end - duplicate.start);
        *again == 0
    }

    /// There was no loss, but packets that came late: the reduction is taken back whole.
    pub(super) fn undo(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        self.congestion.restore(undo.before);
        self.recovery = None;
        self.duplicate_acks = 0;
        self.board.forget_losses();
        self.undone += 1;
    }
}
