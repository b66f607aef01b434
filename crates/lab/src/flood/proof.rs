//! The cookies of a flood's sources, and the messages that carry them.

use std::time::{Duration, Instant};

use weft_tunnel::PublicKey;

use super::message::{Initiation, answered, open_cookie_reply};

/// A cookie younger than this is not replaced: replies to messages sent before it arrived are still in
/// flight.
const FRESH: Duration = Duration::from_secs(1);

/// Which sources have a cookie. Message `n` belongs to source `n % sources`, as in the order of sending.
#[derive(Debug)]
pub(super) struct Proofs {
    key: PublicKey,
    since: Vec<Option<Instant>>,
    messages: usize,
}

impl Proofs {
    /// Creates the state without cookies. `messages` is a multiple of `sources`.
    pub(super) fn new(key: &PublicKey, sources: usize, messages: usize) -> Self {
        Self { key: *key, since: vec![None; sources], messages }
    }

    /// Reports whether this message carries the cookie of its source.
    pub(super) fn has(&self, message: usize) -> bool {
        self.since[message % self.since.len()].is_some()
    }

    /// Handles a received datagram: a cookie reply sets the second MAC of all messages of its source. Returns
    /// the number of cookies accepted, 0 or 1.
    pub(super) fn take(&mut self, datagram: &[u8], all: &mut [Initiation]) -> u64 {
        let Some(number) = answered(datagram).filter(|number| *number < self.messages) else { return 0 };
        let source = number % self.since.len();
        if self.since[source].is_some_and(|since| since.elapsed() < FRESH) {
            return 0;
        }
        let Some(cookie) = open_cookie_reply(&self.key, datagram, all[number].mac1()) else { return 0 };
        self.since[source] = Some(Instant::now());
        all.iter_mut().skip(source).step_by(self.since.len()).for_each(|message| message.prove(&cookie));
        1
    }
}
