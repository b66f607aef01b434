//! Finds the peer and session of a received message by its receiver index.
//!
//! Each handshake has a fresh index on the wire, random in all 32 bits except for the shard, so that an
//! observer cannot use it to follow a peer from one network to the next. boringtun uses other indices: 24
//! bits that stay the same while its state of a peer lives, and a counter. These never leave weft.

use rustc_hash::FxHashMap;

use crate::peer_id::PeerId;
use crate::shard::Shard;

/// The meaning of an index on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) peer: PeerId,
    /// boringtun's index of the handshake or session.
    pub(crate) local: u32,
}

/// All indices that a message to us may carry now.
pub(crate) struct PeerIndex {
    shard: Shard,
    routes: FxHashMap<u32, Route>,
    version: u64,
}

impl PeerIndex {
    pub(crate) fn new(shard: Shard) -> Self {
        Self { shard, routes: FxHashMap::default(), version: 0 }
    }

    pub(crate) fn shard(&self) -> Shard {
        self.shard
    }

    /// Draws a random index of our shard that is not in use.
    pub(crate) fn draw(&mut self, peer: PeerId, local: u32) -> u32 {
        loop {
            let index = self.shard.draw_index();
            if let std::collections::hash_map::Entry::Vacant(entry) = self.routes.entry(index) {
                entry.insert(Route { peer, local });
                self.version += 1;
                return index;
            }
        }
    }

    /// Returns the meaning of the index in a received message.
    #[inline]
    pub(crate) fn route(&self, index: u32) -> Option<Route> {
        self.routes.get(&index).copied()
    }

    /// Returns the shard that messages with this index go to, if it is not ours.
    #[inline]
    pub(crate) fn other_shard_of(&self, index: u32) -> Option<u16> {
        self.shard.other_of_index(index)
    }

    /// Releases an index.
    pub(crate) fn remove(&mut self, index: u32) {
        self.routes.remove(&index);
        self.version += 1;
    }

    /// Iterates over all indices, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.routes.keys().copied()
    }

    /// Returns a number that changes whenever an index is added or removed.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_another_version() {
        let mut indices = PeerIndex::new(Shard::ONLY);
        let peer = PeerId::for_test(0);
        let mut last = indices.version();
        let mut is_newer = |indices: &PeerIndex| {
            let before = std::mem::replace(&mut last, indices.version());
            before < last
        };
        let drawn = indices.draw(peer, 1);
        assert!(is_newer(&indices));
        indices.remove(drawn);
        assert!(is_newer(&indices));
    }
}
