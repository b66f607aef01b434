//! The deadlines of one peer (whitepaper, section 6).

use std::time::{Duration, Instant};

use crate::session::REJECT_AFTER_TIME;

/// Time within which data from a peer is answered, by a keepalive if there is nothing else to send.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between handshake initiations to a peer: the next is sent after this, and never earlier.
pub(crate) const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum random addition to the delay of a handshake, so that two ends do not collide forever.
const MAX_JITTER_MS: u32 = 334;

/// Why the tunnel has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// To send a handshake initiation, for the first time or again.
    Handshake,
    /// To answer data with a keepalive, because nothing else was sent to the peer.
    Keepalive,
    /// To hold a NAT mapping open.
    PersistentKeepalive,
    /// To start a handshake, because data that was sent remained unanswered.
    Silence,
    /// To wipe the keys of sessions that ended.
    SessionExpiry,
}

/// The deadlines of one peer.
#[derive(Debug)]
pub(crate) struct PeerTimers {
    /// When to send a handshake initiation.
    pub(crate) handshake: Option<Instant>,
    /// Start of the present attempt at a handshake.
    pub(crate) trying_since: Option<Instant>,
    /// Initiations sent since the last handshake completed, or since attempts were last given up.
    pub(crate) unanswered: u32,
    /// When the last initiation or response was sent.
    pub(crate) last_handshake_message: Option<Instant>,
    pub(crate) keepalive: Option<Instant>,
    pub(crate) silence: Option<Instant>,
    pub(crate) persistent: Option<Instant>,
    pub(crate) persistent_interval: Option<Duration>,
    pub(crate) session_expiry: Option<Instant>,
    pub(crate) jitter: u32,
    /// Time of the peer's entry in the tunnel's schedule.
    pub(crate) scheduled: Option<Instant>,
    /// Whether a deadline is earlier than that entry, so that the peer has to be scheduled again.
    pub(crate) is_early: bool,
}

impl PeerTimers {
    pub(crate) fn new(persistent_interval: Option<Duration>, seed: u32, now: Instant) -> Self {
        Self {
            handshake: None,
            trying_since: None,
            unanswered: 0,
            last_handshake_message: None,
            keepalive: None,
            silence: None,
            // The first keepalive is due at once, which brings the tunnel up.
            persistent: persistent_interval.map(|_| now),
            persistent_interval,
            session_expiry: None,
            jitter: seed | 1,
            scheduled: None,
            is_early: false,
        }
    }

    /// Sets the interval. A keepalive that this enables is due at once, as in the kernel's WireGuard.
    pub(crate) fn set_persistent_interval(&mut self, interval: Option<Duration>, now: Instant) {
        if interval == self.persistent_interval {
            return;
        }
        self.persistent_interval = interval;
        self.persistent = interval.map(|interval| self.persistent.map_or(now, |at| at.min(now + interval)));
    }

    /// Handles the first endpoint of a peer: a persistent keepalive is due at once, as if it was enabled now.
    pub(crate) fn endpoint_found(&mut self, now: Instant) {
        self.persistent = self.persistent_interval.map(|_| now);
    }

    pub(crate) fn jitter(&mut self) -> Duration {
        // xorshift32: two ends have to differ, nothing more.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 17;
        self.jitter ^= self.jitter << 5;
        Duration::from_millis(u64::from(self.jitter % MAX_JITTER_MS))
    }

    /// Records that data was sealed for the peer.
    #[inline]
    pub(crate) fn data_sent(&mut self, now: Instant) {
        self.keepalive = None;
        if self.silence.is_none() {
            let at = now + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT + self.jitter();
            self.silence = Some(at);
            self.set(at);
        }
        self.passed(now);
    }

    /// Records that an authentic message came from the peer.
    #[inline]
    pub(crate) fn received(&mut self, now: Instant) {
        self.silence = None;
        self.passed(now);
    }

    /// Records that data came from the peer.
    #[inline]
    pub(crate) fn data_received(&mut self, now: Instant) {
        if self.keepalive.is_none() {
            let at = now + KEEPALIVE_TIMEOUT;
            self.keepalive = Some(at);
            self.set(at);
        }
    }

    /// Makes a keepalive due at `at`, unless something else is sent before.
    pub(crate) fn keepalive_by(&mut self, at: Instant) {
        self.keepalive = Some(self.keepalive.map_or(at, |earlier| earlier.min(at)));
        self.set(at);
    }

    /// Makes a handshake due at `at`, unless something is received before.
    pub(crate) fn answer_by(&mut self, at: Instant) {
        self.silence = Some(self.silence.map_or(at, |earlier| earlier.min(at)));
        self.set(at);
    }

    #[inline]
    pub(crate) fn passed(&mut self, now: Instant) {
        if let Some(interval) = self.persistent_interval {
            let at = now + interval;
            self.persistent = Some(at);
            self.set(at);
        }
    }

    /// Records that a deadline was set. Each packet sets a deadline, and almost always the peer's entry in
    /// the schedule is earlier.
    #[inline]
    pub(crate) fn set(&mut self, at: Instant) {
        self.is_early |= self.scheduled.is_none_or(|scheduled| at < scheduled);
    }

    /// Reports whether a handshake is being attempted and has not completed yet.
    pub(crate) fn is_trying(&self) -> bool {
        self.trying_since.is_some()
    }

    pub(crate) fn handshake_message_sent(&mut self, now: Instant) {
        self.last_handshake_message = Some(now);
        self.keepalive = None;
        self.passed(now);
    }

    pub(crate) fn handshake_answered(&mut self, now: Instant) {
        self.handshake_message_sent(now);
        self.session_began(now);
        // The peer is about to confirm the session: an initiation of our own waits for that.
        if let Some(at) = self.handshake {
            self.handshake = Some(at.max(now + REKEY_TIMEOUT));
        }
    }

    pub(crate) fn session_began(&mut self, now: Instant) {
        let expiry = now + REJECT_AFTER_TIME + Duration::from_secs(1);
        self.session_expiry = Some(self.session_expiry.map_or(expiry, |at| at.min(expiry)));
    }

    pub(crate) fn session_established(&mut self, now: Instant, another_in_flight: bool) {
        self.session_began(now);
        self.trying_since = None;
        self.unanswered = 0;
        // boringtun ends its sessions if an initiation stays unanswered for 90 s, so that initiation is
        // repeated; but not before a late response to it can have arrived.
        self.handshake = another_in_flight.then_some(now + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT);
    }

    pub(crate) fn next(&self) -> Option<(Instant, WakeReason)> {
        [
            (self.handshake, WakeReason::Handshake),
            (self.keepalive, WakeReason::Keepalive),
            (self.persistent, WakeReason::PersistentKeepalive),
            (self.silence, WakeReason::Silence),
            (self.session_expiry, WakeReason::SessionExpiry),
        ]
        .into_iter()
        .filter_map(|(at, reason)| Some((at?, reason)))
        .min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn jitters_are_spread_over_a_third_of_a_second() {
        for seed in [0, 1, 2, 0x1234_5678, u32::MAX] {
            let mut timers = PeerTimers::new(None, seed, Instant::now());
            let jitters: BTreeSet<_> = (0..1000).map(|_| timers.jitter().as_millis()).collect();
            // Of a thousand draws from 334, some 317 differ.
            assert!(jitters.len() > 300, "{} of seed {seed}", jitters.len());
            assert!(jitters.last().is_some_and(|last| *last < 334), "{jitters:?}");
        }
    }
}
