//! Explicit Congestion Notification (RFC 3168): routers mark packets in place of dropping them.

use crate::segment::{CWR, ECE, Segment};

/// What both ends tell each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ecn {
    /// Marked packets have come: every acknowledgement says so until the peer has reduced its window.
    echoes: bool,
    /// The next new bytes tell that the window was reduced.
    has_reduced: bool,
    /// The next byte to send at the last reduction: there is one for a round trip (section 6.1.2).
    round_end: u64,
}

impl Ecn {
    /// Reads what a segment says of the path to this end (section 6.1.3). Returns true if that is news for
    /// the peer.
    pub(super) fn receive(&mut self, segment: &Segment<'_>) -> bool {
        if segment.has(CWR) {
            self.echoes = false;
        }
        let is_marked = segment.is_marked && !segment.payload.is_empty();
        is_marked && !std::mem::replace(&mut self.echoes, true)
    }

    /// Reads what an acknowledgement says of the path to the peer. Returns true if the window has to be
    /// reduced.
    pub(super) fn reduces(&mut self, segment: &Segment<'_>, una: u64, next: u64) -> bool {
        let reduces = segment.has(ECE) && una > self.round_end;
        if reduces {
            (self.has_reduced, self.round_end) = (true, next);
        }
        reduces
    }

    /// Something is lost. Returns false if the window was reduced in this round trip already.
    pub(super) fn loss_reduces(&mut self, una: u64, next: u64) -> bool {
        una >= std::mem::replace(&mut self.round_end, next)
    }

    /// Returns the flags of a segment. `is_new`: it has bytes that were not sent before.
    pub(super) fn flags(&self, is_new: bool) -> u8 {
        let echo = if self.echoes { ECE } else { 0 };
        if is_new && self.has_reduced { echo | CWR } else { echo }
    }

    pub(super) fn sent(&mut self, flags: u8) {
        self.has_reduced &= flags & CWR == 0;
    }
}
