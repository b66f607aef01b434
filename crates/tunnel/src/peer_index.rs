//! Which peer and session a received message is for, by the receiver index that it carries.
//!
//! On the wire each handshake has an index of its own, random in all 32 bits, so that an observer cannot follow a peer
//! from one network to the next by it. boringtun has other ones: the same 24 bits for as long as its state of a peer
//! lives, and a counter. They never leave weft.

use rustc_hash::FxHashMap;

use crate::peer::PeerId;

/// What an index on the wire stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) peer: PeerId,
    /// The index by which boringtun knows the handshake or the session.
    pub(crate) local: u32,
}

/// Every index that a message to us may carry now.
#[derive(Default)]
pub(crate) struct PeerIndex {
    routes: FxHashMap<u32, Route>,
    version: u64,
}

impl PeerIndex {
    /// Draws an index that is not in use.
    pub(crate) fn draw(&mut self, peer: PeerId, local: u32) -> u32 {
        loop {
            let index = rand::random();
            if let std::collections::hash_map::Entry::Vacant(entry) = self.routes.entry(index) {
                entry.insert(Route { peer, local });
                self.version += 1;
                return index;
            }
        }
    }

    /// What the index of a received message stands for.
    #[inline]
    pub(crate) fn route(&self, index: u32) -> Option<Route> {
        self.routes.get(&index).copied()
    }

    /// Gives an index back.
    pub(crate) fn remove(&mut self, index: u32) {
        self.routes.remove(&index);
        self.version += 1;
    }

    /// Every index, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.routes.keys().copied()
    }

    /// Changes whenever an index comes or goes.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}
