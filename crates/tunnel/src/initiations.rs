//! The queue of initiations, for when the budget does not allow all of them at once. Initiations that keep a
//! session alive come first; the other causes are served round robin. A peer that scans the addresses of
//! absent peers therefore gets the share of one cause, however many handshakes it requests.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::peer_id::PeerId;

/// Why a handshake is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A session is getting old, or its peer is silent.
    Renewal,
    /// A packet from this machine or from a network behind it.
    Local,
    /// A persistent keepalive, or a session that was lost in a restart.
    Keepalive,
    /// A packet forwarded from this peer.
    Peer(PeerId),
}

/// Peers to send an initiation to, by cause.
#[derive(Debug, Default)]
pub(crate) struct Initiations {
    /// No queue in the map is empty.
    queues: FxHashMap<Cause, VecDeque<PeerId>>,
    /// The causes with queued peers except [`Cause::Renewal`], in the order of their next service.
    round: VecDeque<Cause>,
    len: usize,
}

impl Initiations {
    /// Adds a peer behind the others of the same cause.
    pub(crate) fn push(&mut self, cause: Cause, peer: PeerId) {
        let queue = self.queues.entry(cause).or_default();
        if queue.is_empty() && cause != Cause::Renewal {
            self.round.push_back(cause);
        }
        queue.push_back(peer);
        self.len += 1;
    }

    /// Removes and returns the next peer, with its cause.
    pub(crate) fn pop(&mut self) -> Option<(Cause, PeerId)> {
        let cause = if self.queues.contains_key(&Cause::Renewal) {
            Cause::Renewal
        } else {
            self.round.pop_front()?
        };
        let queue = self.queues.get_mut(&cause)?;
        let peer = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&cause);
        } else if cause != Cause::Renewal {
            self.round.push_back(cause);
        }
        Some((cause, peer))
    }

    /// Reports whether a peer queued under `old` would get its initiation sooner under `new`.
    pub(crate) fn is_sooner(&self, new: Cause, old: Cause) -> bool {
        let ahead = |cause| match cause {
            Cause::Renewal => 0,
            _ => 1 + self.queues.get(&cause).map_or(0, VecDeque::len),
        };
        ahead(new) < ahead(old)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of entries, some of which may be obsolete.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(initiations: &mut Initiations) -> Vec<u32> {
        std::iter::from_fn(|| initiations.pop()).map(|(_, peer)| peer.place() as u32).collect()
    }

    #[test]
    fn each_cause_has_one_in_turn_and_sessions_go_first() {
        let mut initiations = Initiations::default();
        let peer = PeerId::for_test;
        for number in 0..100 {
            initiations.push(Cause::Peer(peer(7)), peer(number));
        }
        for number in 100..103 {
            initiations.push(Cause::Local, peer(number));
        }
        initiations.push(Cause::Keepalive, peer(103));
        initiations.push(Cause::Renewal, peer(104));
        initiations.push(Cause::Renewal, peer(105));
        assert!(initiations.is_sooner(Cause::Local, Cause::Peer(peer(7))));
        assert!(initiations.is_sooner(Cause::Renewal, Cause::Peer(peer(8))));
        assert!(!initiations.is_sooner(Cause::Peer(peer(7)), Cause::Local));
        assert_eq!(initiations.len(), 106);
        let order = peers(&mut initiations);
        assert_eq!(order[..9], [104, 105, 0, 100, 103, 1, 101, 2, 102]);
        assert_eq!(order[9..], (3..100).collect::<Vec<_>>());
        assert!(initiations.is_empty() && initiations.pop().is_none());
    }
}
