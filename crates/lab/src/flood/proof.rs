//! The cookies that the sources of a flood were given, and the messages that carry them.

use std::time::{Duration, Instant};

use weft_tunnel::PublicKey;

use super::message::{Initiation, answered, open_cookie_reply};

/// A cookie this young is not replaced: replies to messages that were sent before it came are still on their
/// way.
const FRESH: Duration = Duration::from_secs(1);

/// Which sources have a cookie. Message `n` belongs to source `n % sources`, as they are sent.
#[derive(Debug)]
pub(super) struct Proofs {
    key: PublicKey,
    since: Vec<Option<Instant>>,
    messages: usize,
}

impl Proofs {
    /// None yet. `messages` is a multiple of `sources`.
    pub(super) fn new(key: &PublicKey, sources: usize, messages: usize) -> Self {
        Self { key: *key, since: vec![None; sources], messages }
    }

    /// Whether this message has the cookie of its source.
    pub(super) fn has(&self, message: usize) -> bool {
        self.since[message % self.since.len()].is_some()
    }

    /// Takes a datagram that came back; if it is a cookie for a source, all messages of the source get it.
    /// Returns how many cookies that were.
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
