//! Admission of handshake messages: checks mac1, and under load the cookie and the budget, before any
//! expensive work (whitepaper, section 5.3).

use std::net::SocketAddr;
use std::time::Instant;

use crate::budget::{HandshakeBudget, Standing, Work};
use crate::cookie::{COOKIE_REPLY_LEN, CookieChecker, CookieRoot};
use crate::drop_reason::DropReason;
use crate::endpoints::Endpoints;
use crate::key::PublicKey;
use crate::sources::{PER_SOURCE, Sources};

/// What to do with a handshake message that the gate refuses.
pub(crate) enum Refused {
    /// Drop the message.
    Drop(DropReason),
    /// Drop the message, and answer with this cookie reply.
    Cookie([u8; COOKIE_REPLY_LEN]),
}

/// Checks handshake messages before the state of any peer is touched.
pub(crate) struct Gate {
    pub(crate) budget: HandshakeBudget,
    checker: CookieChecker,
    /// Sources of messages without a valid cookie.
    unproven: Sources,
    /// Sources of messages with a valid cookie. Messages that others send with a forged source do not count
    /// here.
    proven: Sources,
    unread_at: Option<Instant>,
}

impl Gate {
    pub(crate) fn new(own: &PublicKey, cookies: CookieRoot) -> Self {
        Self {
            budget: HandshakeBudget::new(),
            checker: CookieChecker::new(own, cookies),
            unproven: Sources::default(),
            proven: Sources::default(),
            unread_at: None,
        }
    }

    /// Sets the public key that messages have to be made for.
    pub(crate) fn set_key(&mut self, own: &PublicKey) {
        self.checker.set_key(own);
    }

    /// Reports whether the budget allows checking one more message, and notes load if it does not.
    pub(crate) fn has_time(&mut self, now: Instant) -> bool {
        self.budget.grow(now);
        if !self.budget.has_check() {
            self.budget.note_load(now);
            self.unread_at = Some(now);
            return false;
        }
        true
    }

    /// Returns when the budget for checks was last exhausted.
    pub(crate) fn unread_at(&self) -> Option<Instant> {
        self.unread_at
    }

    /// Counts a received message against the budget.
    ///
    /// # Errors
    /// The budget does not allow checking the message.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<(), DropReason> {
        if !self.has_time(now) {
            return Err(DropReason::HandshakeRateLimited);
        }
        self.budget.spend(Work::Check);
        Ok(())
    }

    /// Checks that a message was made for our public key.
    pub(crate) fn check_mac1(&self, datagram: &[u8]) -> Result<(), DropReason> {
        if self.checker.has_valid_mac1(datagram) { Ok(()) } else { Err(DropReason::InvalidMac) }
    }

    /// Checks mac1, and under load the budget and the cookie. `peers` is the number of peers. With
    /// `is_suspect` the sender has to prove its address even without load.
    pub(crate) fn admit(
        &mut self,
        source: SocketAddr,
        datagram: &[u8],
        endpoints: &Endpoints,
        peers: usize,
        is_suspect: bool,
        now: Instant,
    ) -> Result<(), Refused> {
        let Self { budget, checker, unproven, proven, .. } = self;
        let is_loaded = budget.is_under_load(peers, now);
        if !is_loaded {
            unproven.clear();
            proven.clear();
            if !is_suspect {
                return self.check_mac1(datagram).map_err(Refused::Drop);
            }
        }
        let refused = Refused::Drop(DropReason::HandshakeRateLimited);
        let is_known = endpoints.has_address(source.ip());
        let has_mac2 = CookieChecker::has_mac2(datagram);
        // Before the cookie is checked, which takes as long as everything else. The source proved its address
        // with every message that was counted: others cannot use up its share.
        if is_loaded && has_mac2 && proven.estimate(source.ip(), now) >= PER_SOURCE {
            budget.note_load(now);
            return Err(refused);
        }
        let has_proof = has_mac2 && {
            // Checking a cookie takes as long as receiving the message and checking mac1.
            budget.spend(Work::Check);
            checker.has_valid_mac2(datagram, source, now)
        };
        // The count comes before mac1, because counting is cheaper: most of a flood ends here. Without load
        // the budget admits any number of requests, and no table is allocated.
        let counts = if has_proof { proven } else { unproven };
        let requests = if is_loaded { counts.count(source.ip(), now) } else { 0 };
        if !budget.admits(Standing::of(is_known, has_proof), requests, peers) {
            budget.note_load(now);
            return Err(refused);
        }
        if !checker.has_valid_mac1(datagram) {
            return Err(Refused::Drop(DropReason::InvalidMac));
        }
        if has_proof {
            return Ok(());
        }
        if !is_suspect {
            budget.note_load(now);
        }
        budget.spend(Work::CookieReply);
        Err(checker.reply(datagram, source, now).map_or(refused, Refused::Cookie))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mac;

    #[test]
    fn messages_under_suspicion_are_counted_only_under_load() {
        let (own, now) = (PublicKey::from_bytes([1; 32]), Instant::now());
        let source = SocketAddr::from(([192, 0, 2, 1], 51820));
        let mut gate = Gate::new(&own, CookieRoot::generate(now));
        gate.budget.grow(now);
        let mut response = [2; 92];
        mac::stamp(&mut response, &own, None);
        for (is_loaded, counted) in [(false, 0), (true, 5)] {
            if is_loaded {
                gate.budget.note_load(now);
            }
            for _ in 0..5 {
                let admitted = gate.admit(source, &response, &Endpoints::default(), 1, true, now);
                assert!(matches!(admitted, Err(Refused::Cookie(_))), "the sender has to prove its address");
            }
            assert_eq!(gate.unproven.estimate(source.ip(), now), counted, "under load: {is_loaded}");
        }
    }
}
