//! A node: its tunnel, or those of its shards, with their queues and recorded output.

use std::net::SocketAddr;
use std::time::Instant;

use weft_tunnel::{
    ControlQueue, DropCounters, DropReason, Event, Inbound, PeerId, PeerSnapshot, PlainSlab, PublicKey,
    RecvMeta, TransmitQueue, Tunnel, TunnelStats,
};

use super::network::Datagram;
use super::packets::number_of;

/// A tunnel with its address, its queues and its recorded output.
pub(crate) struct Node {
    /// The only tunnel of the node, or that of shard 0.
    pub(crate) tunnel: Tunnel,
    /// Whether peers moved between shards with their sessions.
    pub(super) has_moves: bool,
    /// The tunnels of the other shards.
    pub(crate) others: Vec<Tunnel>,
    pub(crate) public_key: PublicKey,
    /// The source address that the routing table of the node chooses.
    pub(crate) address: SocketAddr,
    pub(crate) aliases: Vec<SocketAddr>,
    pub(crate) control: ControlQueue,
    pub(super) transmits: TransmitQueue,
    pub(crate) plain: PlainSlab,
    /// All inner packets that the tunnel opened, in order.
    pub(crate) packets: Vec<Vec<u8>>,
    pub(crate) events: Vec<Event>,
    pub(crate) last_path_peer: Option<PeerId>,
    /// Number of wake-ups by timers.
    pub(crate) wakes: usize,
}

impl Node {
    pub(crate) fn public_key(&self) -> PublicKey {
        self.public_key
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = &Tunnel> {
        std::iter::once(&self.tunnel).chain(&self.others)
    }

    pub(crate) fn shard_count(&self) -> usize {
        1 + self.others.len()
    }

    pub(crate) fn shard_mut(&mut self, shard: usize) -> &mut Tunnel {
        shard_of(&mut self.tunnel, &mut self.others, shard)
    }

    /// Returns the shard that has this peer.
    pub(crate) fn owner_of(&self, key: &PublicKey) -> Option<usize> {
        self.shards().position(|tunnel| tunnel.peers().any(|peer| peer.public_key == *key))
    }

    /// Returns the shard to which the kernel gives a datagram: by the four bytes of the receiver index as
    /// they are on the wire.
    pub(super) fn socket_of(&self, datagram: &Datagram) -> usize {
        let at = match datagram.bytes.first() {
            Some(2) => 8,
            Some(3 | 4) => 4,
            _ => return 0,
        };
        let index = datagram.bytes.get(at..).and_then(|bytes| bytes.first_chunk());
        index.map_or(0, |index| u32::from_be_bytes(*index) as usize % self.shard_count())
    }

    /// Counts of all shards together.
    pub(crate) fn drops(&self) -> DropCounters {
        let mut all = DropCounters::default();
        for (reason, count) in self.shards().flat_map(|tunnel| tunnel.drops().iter()) {
            all.add(reason, count);
        }
        all
    }

    /// Checks that every index is a peer's, and one by which the kernel finds the shard of that peer.
    pub(super) fn check_indices(&self) {
        for (number, tunnel) in self.shards().enumerate().filter(|_| self.shard_count() > 1) {
            for index in tunnel.receiver_indices() {
                let [a, b, c, d] = index.to_le_bytes();
                let drawn_by = u32::from_be_bytes([a, b, c, d]) as usize % self.shard_count();
                assert_eq!(drawn_by, number, "{index:#x}");
                let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
                let peer_in = |tunnel: &Tunnel| tunnel.peer_of_received(&[4, 0, 0, 0, a, b, c, d], nowhere);
                // The shard that drew the index keeps it for a while after the peer moved away.
                let is_known = peer_in(tunnel).is_some() || self.has_moves;
                assert!(is_known, "the peer of {index:#x} is gone");
            }
        }
    }

    /// Returns the numbers of the packets that the tunnel opened, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.packets.iter().map(|packet| number_of(packet)).collect()
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.shards().map(|tunnel| tunnel.drops().get(reason)).sum()
    }

    pub(crate) fn stats(&self) -> &TunnelStats {
        self.tunnel.stats()
    }

    pub(crate) fn peer(&self, key: &PublicKey) -> PeerSnapshot {
        self.shards().flat_map(Tunnel::peers).find(|peer| peer.public_key == *key).unwrap()
    }
}

pub(super) fn shard_of<'a>(first: &'a mut Tunnel, others: &'a mut [Tunnel], shard: usize) -> &'a mut Tunnel {
    if shard == 0 { first } else { &mut others[shard - 1] }
}

/// Hands a datagram over to a shard, as event loops do.
pub(crate) fn hand_over(
    tunnel: &mut Tunnel,
    meta: &RecvMeta,
    datagram: &[u8],
    now: Instant,
    plain: &mut PlainSlab,
    control: &mut ControlQueue,
) -> Result<Inbound, DropReason> {
    if Tunnel::is_data(datagram) {
        let mut datagram = datagram.to_vec();
        tunnel.accept_handed_over(&mut datagram)?;
        tunnel.handle_datagram(meta, &mut datagram, now, plain, control)
    } else {
        tunnel.handle_handed_over(meta, datagram, now, control).map(|()| Inbound::Consumed)
    }
}
