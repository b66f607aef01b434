//! Which initiation is sent next, when there is not time for all: those that keep a session alive, and then one for each
//! cause in turn. A peer that scans the addresses of others that are away has one turn, however many it wants.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::peer::PeerId;

/// Why there is to be a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// A session is getting old, or its other end has fallen silent.
    Renewal,
    /// A packet of this machine or of a network behind it.
    Local,
    /// A persistent keepalive, or what a restart has left.
    Keepalive,
    /// A packet from this peer.
    Peer(PeerId),
}

/// Peers that an initiation is to be sent to, by cause.
#[derive(Debug, Default)]
pub(crate) struct Initiations {
    /// None of them is empty.
    queues: FxHashMap<Cause, VecDeque<PeerId>>,
    /// The causes that have something, [`Cause::Renewal`] left out. The next one first.
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

    /// Takes the next one.
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

    /// Whether a peer that waits behind `old` gets its initiation sooner behind `new`.
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

    /// How many there are; some may not be wanted any more.
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
