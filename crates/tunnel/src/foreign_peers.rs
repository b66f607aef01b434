//! The table of foreign peers: those of other shards of the interface.

use std::net::IpAddr;

use crate::peer_id::PeerId;

/// A peer of another shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignPeer {
    /// Address of its endpoint, by which the gate recognizes it.
    pub(crate) address: Option<IpAddr>,
    /// Number of prefixes of the peer in the table of allowed-ips.
    pub(crate) prefixes: u32,
    pub(crate) shard: u16,
}

/// The foreign peers by their place in the table of peers. Empty as long as there is none.
#[derive(Debug, Default)]
pub(crate) struct ForeignPeers(Vec<Option<ForeignPeer>>);

impl ForeignPeers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the shard of a peer, if it is a foreign peer.
    #[inline]
    pub(crate) fn shard_of(&self, id: PeerId) -> Option<u16> {
        self.0.get(id.place())?.as_ref().map(|peer| peer.shard)
    }

    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut ForeignPeer> {
        self.0.get_mut(id.place())?.as_mut()
    }

    pub(crate) fn insert(&mut self, id: PeerId, peer: ForeignPeer) {
        if id.place() >= self.0.len() {
            self.0.resize(id.place() + 1, None);
        }
        self.0[id.place()] = Some(peer);
    }

    pub(crate) fn take(&mut self, id: PeerId) -> Option<ForeignPeer> {
        self.0.get_mut(id.place())?.take()
    }
}
