//! Who is let in to a handshake: mac1, and under load a cookie and the budget, before anything dear is done (whitepaper,
//! section 5.3).

use std::net::SocketAddr;
use std::time::Instant;

use crate::budget::{HandshakeBudget, Standing, Work};
use crate::cookie::{COOKIE_REPLY_LEN, CookieChecker};
use crate::drop_reason::DropReason;
use crate::endpoints::Endpoints;
use crate::key::PublicKey;
use crate::sources::{PER_SOURCE, Sources};

/// Why the gate did not let a handshake message in.
pub(crate) enum Refused {
    /// Drop it.
    Drop(DropReason),
    /// Answer with this cookie reply.
    Cookie([u8; COOKIE_REPLY_LEN]),
}

/// Checks handshake messages before any peer is touched.
pub(crate) struct Gate {
    pub(crate) budget: HandshakeBudget,
    checker: CookieChecker,
    /// Of messages without a cookie.
    unproven: Sources,
    /// Of those with one: what others send in the name of a source does not count here.
    proven: Sources,
    unread_at: Option<Instant>,
}

impl Gate {
    pub(crate) fn new(own: &PublicKey) -> Self {
        Self {
            budget: HandshakeBudget::new(),
            checker: CookieChecker::new(own),
            unproven: Sources::default(),
            proven: Sources::default(),
            unread_at: None,
        }
    }

    /// Checks messages for another key from now on.
    pub(crate) fn set_key(&mut self, own: &PublicKey) {
        self.checker = CookieChecker::new(own);
    }

    /// Whether there is time to look at one more message.
    pub(crate) fn has_time(&mut self, now: Instant) -> bool {
        self.budget.grow(now);
        if !self.budget.has_check() {
            self.budget.note_load(now);
            self.unread_at = Some(now);
            return false;
        }
        true
    }

    /// When there was no time last.
    pub(crate) fn unread_at(&self) -> Option<Instant> {
        self.unread_at
    }

    /// Counts a message that was received; refused when there is no time to look at it.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<(), DropReason> {
        if !self.has_time(now) {
            return Err(DropReason::HandshakeRateLimited);
        }
        self.budget.spend(Work::Check);
        Ok(())
    }

    /// Checks that a message was made for us.
    pub(crate) fn check_mac1(&self, datagram: &[u8]) -> Result<(), DropReason> {
        if self.checker.has_valid_mac1(datagram) { Ok(()) } else { Err(DropReason::InvalidMac) }
    }

    /// Checks mac1, and under load the budget and the cookie. `peers`: the number of peers. `is_suspect`: the sender has to
    /// prove its address in any case.
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
        if !budget.is_under_load(peers, now) && !is_suspect {
            unproven.clear();
            proven.clear();
            return self.check_mac1(datagram).map_err(Refused::Drop);
        }
        let refused = Refused::Drop(DropReason::HandshakeRateLimited);
        let is_known = endpoints.has_address(source.ip());
        let has_proof = CookieChecker::has_mac2(datagram) && {
            // A cookie takes as long to check as everything else.
            budget.spend(Work::Check);
            checker.has_valid_mac2(datagram, source, now)
        };
        // Before mac1, which takes longer than to count: most of a flood ends here.
        let requests = if has_proof { proven } else { unproven }.count(source.ip(), now);
        let is_excessive = has_proof && requests > PER_SOURCE;
        if is_excessive || !budget.admits(Standing::of(is_known, has_proof), requests, peers) {
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
