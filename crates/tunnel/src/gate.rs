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
}

impl Gate {
    pub(crate) fn new(own: &PublicKey) -> Self {
        Self {
            budget: HandshakeBudget::new(),
            checker: CookieChecker::new(own),
            unproven: Sources::default(),
            proven: Sources::default(),
        }
    }

    /// Checks messages for another key from now on.
    pub(crate) fn set_key(&mut self, own: &PublicKey) {
        self.checker = CookieChecker::new(own);
    }

    /// Checks that a message was made for us.
    pub(crate) fn check(&mut self, datagram: &[u8], now: Instant) -> Result<(), DropReason> {
        self.budget.grow(now);
        if !self.budget.has_check() {
            self.budget.note_load(now);
            return Err(DropReason::HandshakeRateLimited);
        }
        self.budget.spend(Work::Check);
        if self.checker.has_valid_mac1(datagram) { Ok(()) } else { Err(DropReason::InvalidMac) }
    }

    /// Lets in a message that passed [`Self::check`], or says what to do with it. `peers`: how many there are. `is_suspect`:
    /// its sender has to prove its address in any case.
    pub(crate) fn admit(
        &mut self,
        source: SocketAddr,
        datagram: &[u8],
        endpoints: &Endpoints,
        peers: usize,
        is_suspect: bool,
        now: Instant,
    ) -> Result<(), Refused> {
        if !self.budget.is_under_load(peers, now) && !is_suspect {
            self.unproven.clear();
            self.proven.clear();
            return Ok(());
        }
        if !self.checker.has_valid_mac2(datagram, source, now) {
            let requests = self.unproven.count(source.ip(), now);
            let reply = if self.budget.admits(Standing::Unproven, requests, peers) {
                self.budget.spend(Work::CookieReply);
                self.checker.reply(datagram, source, now)
            } else {
                None
            };
            if !is_suspect {
                self.budget.note_load(now);
            }
            return Err(reply.map_or(Refused::Drop(DropReason::HandshakeRateLimited), Refused::Cookie));
        }
        let requests = self.proven.count(source.ip(), now);
        let standing = if endpoints.has_address(source.ip()) { Standing::Known } else { Standing::Proven };
        if requests > PER_SOURCE || !self.budget.admits(standing, requests, peers) {
            self.budget.note_load(now);
            return Err(Refused::Drop(DropReason::HandshakeRateLimited));
        }
        Ok(())
    }
}
