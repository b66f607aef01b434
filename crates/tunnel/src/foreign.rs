//! Foreign peers: peers of other shards of the interface. A tunnel knows which addresses are theirs and to
//! which shard to hand over their packets, and has no session with them.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::ip::IpHeader;
use crate::key::PublicKey;
use crate::peer_id::PeerId;
use crate::tunnel::Tunnel;

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
    fn is_empty(&self) -> bool {
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

    fn insert(&mut self, id: PeerId, peer: ForeignPeer) {
        if id.place() >= self.0.len() {
            self.0.resize(id.place() + 1, None);
        }
        self.0[id.place()] = Some(peer);
    }

    pub(crate) fn take(&mut self, id: PeerId) -> Option<ForeignPeer> {
        self.0.get_mut(id.place())?.take()
    }
}

impl Tunnel {
    /// Returns the shard of the peer that an outbound packet is for, if it is another shard. `None` also for
    /// a packet that no peer gets: this tunnel refuses it.
    #[inline]
    pub fn shard_of(&mut self, packet: &[u8]) -> Option<u16> {
        if self.foreign.is_empty() {
            return None;
        }
        let id = self.allowed_ips.peer_of(IpHeader::parse(packet)?.destination)?;
        self.foreign.shard_of(id)
    }

    /// Adds a peer of another shard. An own peer with this key becomes foreign: its sessions end, and its
    /// staged packets are dropped. Returns false if `shard` is this shard, or none of the interface.
    pub(crate) fn add_foreign_peer(
        &mut self,
        key: PublicKey,
        shard: u16,
        endpoint: Option<SocketAddr>,
        allowed_ips: Vec<IpNet>,
    ) -> bool {
        let own = self.by_index.shard();
        if shard == own.number() || shard >= own.count() {
            return false;
        }
        let id = self.place_of(key);
        let prefixes = self.vacate(id);
        self.foreign.insert(id, ForeignPeer { address: None, prefixes, shard });
        self.set_foreign_endpoint(id, endpoint);
        self.set_allowed_ips(id, allowed_ips);
        true
    }

    /// Sets or clears the endpoint of a foreign peer. Returns false if the peer is not foreign.
    pub(crate) fn set_foreign_endpoint(&mut self, id: PeerId, endpoint: Option<SocketAddr>) -> bool {
        let Some(peer) = self.foreign.get_mut(id) else { return false };
        let after = endpoint.map(|endpoint| endpoint.ip());
        let before = std::mem::replace(&mut peer.address, after);
        self.endpoints.replace(before, after);
        true
    }
}
