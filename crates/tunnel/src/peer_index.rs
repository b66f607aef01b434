//! Which peer a received message is for, by the receiver index that it carries.

use rustc_hash::FxHashMap;

use crate::peer::PeerId;

/// Indices are random so that they tell an observer nothing; the low 8 bits of the 32 on the wire count a
/// peer's sessions, the high 24 are the peer's.
pub(crate) const INDEX_BITS: u32 = 24;

/// Every peer by its 24-bit index.
#[derive(Default)]
pub(crate) struct PeerIndex(FxHashMap<u32, PeerId>);

impl PeerIndex {
    /// Adds a peer; false, and nothing added, if the index is taken.
    pub(crate) fn insert(&mut self, index: u32, peer: PeerId) -> bool {
        match self.0.entry(index) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(peer);
                true
            }
        }
    }

    /// The peer whose sessions have `receiver_index` on the wire.
    #[inline]
    pub(crate) fn peer_of(&self, receiver_index: u32) -> Option<PeerId> {
        self.0.get(&(receiver_index >> (32 - INDEX_BITS))).copied()
    }

    /// Takes a peer away.
    pub(crate) fn remove(&mut self, index: u32) {
        self.0.remove(&index);
    }
}
