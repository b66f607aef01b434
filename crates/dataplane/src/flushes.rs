//! What other packet threads want to know of peers that moved there: when everything that this thread has
//! received for such a peer is handed over ([`crate::detours`]).

use std::net::SocketAddr;

use weft_tunnel::PublicKey;

use crate::siblings::Siblings;

/// Packet thread `to` waits until everything from a source has been handed over.
#[derive(Debug)]
struct Flush {
    peer: PublicKey,
    source: SocketAddr,
    to: u16,
    /// Whether the sockets have been empty since then.
    is_received: bool,
}

#[derive(Debug, Default)]
pub(super) struct Flushes(Vec<Flush>);

impl Flushes {
    /// Records that packet thread `to` has the peer now, and waits for the answer.
    pub(super) fn ask(&mut self, peer: PublicKey, source: SocketAddr, to: u16) {
        self.0.push(Flush { peer, source, to, is_received: false });
    }

    /// Records that everything that had arrived when the threads asked is received: the sockets are empty.
    pub(super) fn mark_received(&mut self) {
        self.0.iter_mut().for_each(|flush| flush.is_received = true);
    }

    /// Answers the threads for which everything is handed over: none of it waits here. Returns false if an
    /// answer has no room, and this has to be called again at once.
    pub(super) fn answer(&mut self, siblings: &Siblings, waits_here: impl Fn(SocketAddr) -> bool) -> bool {
        let mut is_done = true;
        self.0.retain(|flush| {
            let is_through = flush.is_received && !waits_here(flush.source);
            let is_answered = is_through && siblings.answer_flush(flush.to, flush.peer);
            is_done &= is_answered || !is_through;
            !is_answered
        });
        is_done
    }
}
