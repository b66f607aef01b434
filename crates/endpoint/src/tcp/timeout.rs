//! A deadline of a connection has come.

use super::connection::{Connection, DEADLINES, Deadline, NEVER, nanoseconds};
use super::rtt::MAX_RTO;
use super::scoreboard::Record;
use super::sequence::FIRST;
use crate::common::Common;
use crate::{StreamError, StreamState};

/// How long a connection sends again without an answer (RFC 9293, section 3.8.3: R2).
const GIVE_UP: u64 = 900_000_000_000;
/// The same before it is open.
const GIVE_UP_SYN: u64 = 180_000_000_000;
/// How long a peer may take nothing once the application has released the connection.
const GIVE_UP_RELEASED: u64 = 60_000_000_000;
/// How long a released connection waits for the peer's FIN.
const FIN_WAIT_2: u64 = 60_000_000_000;
/// Between keepalive probes, and how many are not answered before the peer counts as gone.
const KEEPALIVE_INTERVAL: u64 = 75_000_000_000;
const KEEPALIVE_PROBES: u32 = 9;
/// Expirations in a row after which segments are as small as every path takes: routers may drop larger ones
/// and say nothing (RFC 2923).
const BLACK_HOLE: u32 = 3;
const SAFE_MTU: u16 = 1280;

impl Connection {
    /// Does what is due.
    pub(crate) fn timeout(&mut self, common: &mut Common) {
        for (index, deadline) in DEADLINES.into_iter().enumerate() {
            if self.deadlines[index] > common.now {
                continue;
            }
            self.deadlines[index] = NEVER;
            match deadline {
                Deadline::Retransmit => self.retransmit(common),
                Deadline::TailProbe => {
                    if !self.board.is_empty() && self.board.sacked() == 0 && self.recovery.is_none() {
                        self.tail_probe_due = true;
                    }
                }
                Deadline::Reordering => {
                    let outstanding = self.next - self.una;
                    if self.detect_losses(common.now) > 0 {
                        self.enter_recovery(outstanding, 0);
                    }
                }
                Deadline::Persist => self.persist(common),
                Deadline::Pacing => {}
                Deadline::DelayedAck => self.wants_ack = true,
                Deadline::Idle => self.idle(common),
                Deadline::UserTimeout => {
                    self.send_reset(common);
                    self.fail(StreamError::TimedOut, common);
                }
            }
        }
    }

    /// The retransmission timer (RFC 6298, section 5; RFC 8985, section 6.3).
    fn retransmit(&mut self, common: &mut Common) {
        if self.board.is_empty() {
            return;
        }
        let now = common.now;
        let limit = match self.state {
            StreamState::SynSent | StreamState::SynReceived => GIVE_UP_SYN,
            _ => GIVE_UP,
        };
        // A peer that answers with a closed window may take as long as it wants.
        let since = if self.window == 0 { self.heard_at } else { self.silent_since };
        if now.saturating_sub(since) >= limit {
            if self.una >= FIRST {
                self.send_reset(common);
            }
            return self.fail(StreamError::TimedOut, common);
        }
        self.timeouts += 1;
        common.stats.timeouts += 1;
        let is_first = self.rtt.backoff() == 0;
        if self.una < FIRST {
            // What drops a SYN may do so because it asks for ECN (section 6.1.1.1 of RFC 3168).
            self.ecn = None;
        }
        let outstanding = self.next - self.una;
        if self.board.first().is_some_and(Record::is_sacked) {
            // The peer has what it did not acknowledge: its word is void.
            self.board.forget_sacks();
        }
        self.rack.timed_out(&mut self.board, &self.rtt, self.una, now);
        self.enter_recovery_by_timeout(outstanding, is_first);
        self.rtt.back_off();
        self.tail_probe = None;
        self.tail_probe_due = false;
        self.duplicate_acks = 0;
        self.clear(Deadline::TailProbe);
        self.clear(Deadline::Reordering);
        self.set(Deadline::Retransmit, now + self.rtt.timeout());
        if self.rtt.backoff() == BLACK_HOLE && self.path_mtu > SAFE_MTU && outstanding >= self.mss() {
            self.lower_mtu(SAFE_MTU);
        }
    }

    /// Sets or clears the deadlines of the probe of a closed window, and of a peer that takes nothing. Called
    /// after everything that may change whether one is needed.
    pub(crate) fn update_persist(&mut self, common: &Common) {
        if !self.is_blocked_by_window() {
            self.clear(Deadline::Persist);
            self.persist_backoff = 0;
        } else if !self.is_set(Deadline::Persist) && !self.window_probe_due {
            if self.persist_backoff == 0 {
                self.silent_since = common.now;
            }
            let timeout = self.rtt.timeout().saturating_mul(1 << self.persist_backoff.min(16)).min(MAX_RTO);
            self.set(Deadline::Persist, common.now + timeout);
        }
        let waits = !self.board.is_empty() || self.is_set(Deadline::Persist) || self.window_probe_due;
        let most = if self.is_released { GIVE_UP_RELEASED } else { NEVER };
        let at = self.silent_since.saturating_add(self.user_timeout.min(most));
        self.set(Deadline::UserTimeout, if waits && self.una >= FIRST { at } else { NEVER });
    }

    /// RFC 9293, section 3.8.6.1.
    fn persist(&mut self, common: &mut Common) {
        // Only a silent peer ends it.
        let since = self.heard_at.max(self.silent_since);
        if self.persist_backoff > 0 && common.now.saturating_sub(since) >= GIVE_UP {
            self.send_reset(common);
            return self.fail(StreamError::TimedOut, common);
        }
        self.persist_backoff = (self.persist_backoff + 1).min(16);
        if self.window > 0 {
            // A window smaller than a segment: what fits is sent.
            self.may_send_small = true;
        } else {
            self.window_probe_due = true;
        }
    }

    /// The peer is silent, or only its FIN is awaited.
    fn idle(&mut self, common: &mut Common) {
        let silent = common.now.saturating_sub(self.heard_at);
        if self.is_released && self.state == StreamState::FinWait2 {
            return self.fail(StreamError::TimedOut, common);
        }
        let Some(idle) = common.limits.keepalive.map(nanoseconds) else { return };
        let interval = KEEPALIVE_INTERVAL.min(idle);
        if silent < idle {
            return self.set(Deadline::Idle, self.heard_at + idle);
        }
        if self.keepalive_probes >= KEEPALIVE_PROBES {
            self.send_reset(common);
            return self.fail(StreamError::TimedOut, common);
        }
        if self.board.is_empty() && self.una >= FIRST {
            self.keepalive_probes += 1;
            self.window_probe_due = true;
        }
        self.set(Deadline::Idle, common.now + interval);
    }

    /// Bounds the time that a released connection waits for the peer's FIN.
    pub(super) fn limit_wait(&mut self, common: &Common) {
        self.set(Deadline::Idle, common.now + FIN_WAIT_2);
    }
}
