//! Changes to peers while packets move, as wg(8) makes them to a running interface. No change costs more than
//! table lookups: an X25519 is computed when the first handshake needs it, within the handshake budget.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::config::PeerConfig;
use crate::endpoints::Endpoint;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::limits::{Limits, PeerLimits};
use crate::path_limit::PathLimit;
use crate::restore::Remembered;
use crate::session::Identity;
use crate::tunnel::Tunnel;

/// One change to a running tunnel. It has no effect if its peer is gone.
#[derive(Debug)]
pub enum Change {
    /// Adds a peer. Its key must be new to this shard.
    AddPeer(Box<PeerConfig>),
    /// Adds a peer of another shard, or makes a peer of this shard one: its sessions end, and its staged
    /// packets are dropped. Later a foreign peer takes [`Self::RemovePeer`], [`Self::AllowedIps`] and
    /// [`Self::Endpoint`]; [`Self::AddPeer`] makes it a peer of this shard.
    AddForeignPeer {
        /// Public key of the peer.
        peer: PublicKey,
        /// Number of the shard that the peer belongs to.
        shard: u16,
        /// Endpoint of the peer, if it is known.
        endpoint: Option<SocketAddr>,
        /// Inner prefixes of the peer, without host bits. Others that it had are removed.
        allowed_ips: Vec<IpNet>,
    },
    /// Removes a peer with its sessions and staged packets.
    RemovePeer(PublicKey),
    /// Sets the endpoint of a peer. Sessions stay; a peer without an endpoint so far gets its persistent
    /// keepalive at once.
    Endpoint {
        /// Public key of the peer.
        peer: PublicKey,
        /// New endpoint of the peer.
        endpoint: SocketAddr,
    },
    /// Sets the persistent keepalive interval. Sessions stay; a keepalive that this enables is due at once.
    PersistentKeepalive {
        /// Public key of the peer.
        peer: PublicKey,
        /// Interval in seconds; `None` disables it.
        interval: Option<NonZeroU16>,
    },
    /// Sets the rate limits for packets to and from a peer. Sessions stay.
    Limits {
        /// Public key of the peer.
        peer: PublicKey,
        /// New limits in both directions.
        limits: PeerLimits,
    },
    /// Assigns prefixes to a peer, and removes them from the peers that they belong to; or removes prefixes
    /// from the peer.
    AllowedIps {
        /// Public key of the peer.
        peer: PublicKey,
        /// Prefixes to assign to the peer, before others are removed.
        add: Vec<IpNet>,
        /// Prefixes to remove from the peer. A prefix that belongs to another peer stays there.
        remove: Vec<IpNet>,
    },
    /// Sets the preshared key for later handshakes, and restarts their timestamps from the wall clock as it
    /// is now; the key may stay the same. The existing session is used until the next handshake completes, as
    /// in the kernel's WireGuard.
    PresharedKey {
        /// Public key of the peer.
        peer: PublicKey,
        /// Preshared key that both ends mix into the handshake, if any.
        key: Option<PresharedKey>,
    },
    /// Sets the private key. Handshakes for the old key are not answered any more. The sessions of the peers
    /// have to be ended as well, with [`Change::EndSession`].
    PrivateKey(PrivateKey),
    /// Ends the sessions with a peer, because they were agreed with another private key.
    EndSession(PublicKey),
    /// Sets the MTU of the TUN, in bytes.
    Mtu(u16),
    /// The path to a peer changed: this machine reaches it from another address or by another route. The
    /// routing table chooses the source again, and the learnt path MTU is forgotten. A peer with a session is
    /// sent a keepalive soon, and a handshake initiation if it stays silent.
    PathChanged(PublicKey),
    /// This machine slept, and its clock stood still: sessions are older than they seem. A peer with a
    /// session is sent a keepalive soon, or a handshake initiation if the sleep was longer than a session
    /// lasts (Reject-After-Time).
    Resumed {
        /// Public key of the peer.
        peer: PublicKey,
        /// How long the machine slept.
        slept: Duration,
    },
    /// Restores the state that a previous tunnel recorded of a peer. The peer was just added.
    Restore {
        /// Public key of the peer.
        peer: PublicKey,
        /// Recorded state of the peer.
        remembered: Remembered,
    },
}

impl Change {
    /// Returns roughly how many table entries the change touches. Many small changes cost as much as one
    /// large change of the same total weight.
    pub fn weight(&self) -> usize {
        match self {
            Self::AddPeer(peer) => 4 + peer.allowed_ips.len(),
            Self::AddForeignPeer { allowed_ips, .. } => 4 + allowed_ips.len(),
            Self::AllowedIps { add, remove, .. } => 1 + add.len() + remove.len(),
            Self::PathChanged(_) | Self::Resumed { .. } | Self::Restore { .. } => 2,
            Self::RemovePeer(_) | Self::PresharedKey { .. } | Self::EndSession(_) => 4,
            _ => 1,
        }
    }
}

impl Tunnel {
    /// Applies one change. Returns false if it has no effect: its peer is gone or foreign, or the peer to add
    /// exists already.
    pub fn apply(&mut self, change: Change, now: Instant) -> bool {
        match change {
            Change::AddPeer(peer) => self.insert_peer(*peer, now).is_ok(),
            Change::AddForeignPeer { peer, shard, endpoint, allowed_ips } => {
                self.add_foreign_peer(peer, shard, endpoint, allowed_ips)
            }
            Change::RemovePeer(key) => self.remove_peer(&key),
            Change::Endpoint { peer, endpoint } => self.set_endpoint(&peer, endpoint, now),
            Change::PersistentKeepalive { peer, interval } => self.set_keepalive(&peer, interval, now),
            Change::Limits { peer, limits } => self.set_limits(&peer, limits, now),
            Change::AllowedIps { peer, add, remove } => self.change_allowed_ips(&peer, &add, &remove),
            Change::PresharedKey { peer, key } => self.set_preshared_key(&peer, key, now),
            Change::EndSession(peer) => self.end_session(&peer),
            Change::PrivateKey(key) => {
                self.identity = Identity::new(key);
                self.gate.set_key(&self.identity.public_key);
                true
            }
            Change::Mtu(mtu) => {
                self.config.mtu = mtu;
                true
            }
            Change::PathChanged(peer) => self.path_changed(&peer, now),
            Change::Resumed { peer, slept } => self.resumed(&peer, slept, now),
            Change::Restore { peer, remembered } => self.restore(&peer, &remembered, now),
        }
    }

    fn set_endpoint(&mut self, key: &PublicKey, address: SocketAddr, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peer_mut(id) else { return self.set_foreign_endpoint(id, Some(address)) };
        if peer.endpoint.is_none() {
            peer.timers.endpoint_found(now);
        }
        // With an unchanged address the source that the peer knows stays.
        if peer.endpoint.is_none_or(|endpoint| endpoint.address != address) {
            peer.path_limit = PathLimit::default();
            self.set_peer_endpoint(id, Some(Endpoint { address, source: None }));
        }
        self.reschedule(id);
        true
    }

    fn set_keepalive(&mut self, key: &PublicKey, interval: Option<NonZeroU16>, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peer_mut(id) else { return false };
        let interval = interval.map(|seconds| Duration::from_secs(seconds.get().into()));
        peer.timers.set_persistent_interval(interval, now);
        self.reschedule(id);
        true
    }

    fn set_limits(&mut self, key: &PublicKey, limits: PeerLimits, now: Instant) -> bool {
        let Some(peer) = self.peer_by_key(key) else { return false };
        Limits::change(&mut peer.limits, limits, now);
        true
    }

    fn change_allowed_ips(&mut self, key: &PublicKey, add: &[IpNet], remove: &[IpNet]) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        for network in add {
            self.allow(*network, id);
        }
        for network in remove {
            self.disallow(*network, id);
        }
        true
    }

    fn set_preshared_key(&mut self, key: &PublicKey, preshared: Option<PresharedKey>, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return false };
        let new = peer.session.successor(preshared);
        let has_sessions = peer.session.can_seal(now);
        let old = Box::new(std::mem::replace(&mut peer.session, new));
        // A session that cannot seal is discarded, because the previous session may still be in use.
        let gone = if has_sessions { peer.previous.replace(old) } else { Some(old) };
        if let Some(mut gone) = gone {
            gone.clear(&mut self.by_index);
        }
        true
    }

    fn end_session(&mut self, key: &PublicKey) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return false };
        peer.session.clear(&mut self.by_index);
        if let Some(mut previous) = peer.previous.take() {
            previous.clear(&mut self.by_index);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PeerSettings;

    #[test]
    fn each_prefix_of_a_change_weighs_as_much_as_a_small_change() {
        let peer = PublicKey::from_bytes([1; 32]);
        let small = Change::PersistentKeepalive { peer, interval: None }.weight();
        let prefixes = |count: usize| vec![IpNet::default(); count];
        let with_prefixes: [&dyn Fn(usize) -> Change; 4] = [
            &|count| {
                let allowed_ips = prefixes(count);
                let settings = PeerSettings::default();
                Change::AddPeer(Box::new(PeerConfig {
                    public_key: peer,
                    endpoint: None,
                    allowed_ips,
                    settings,
                }))
            },
            &|count| Change::AddForeignPeer { peer, shard: 1, endpoint: None, allowed_ips: prefixes(count) },
            &|count| Change::AllowedIps { peer, add: prefixes(count), remove: Vec::new() },
            &|count| Change::AllowedIps { peer, add: Vec::new(), remove: prefixes(count) },
        ];
        for change in with_prefixes {
            assert!(change(0).weight() >= small);
            for count in [1, 500] {
                assert_eq!(change(count).weight(), change(0).weight() + count * small, "{:?}", change(1));
            }
        }
        // What changes more than one table weighs more.
        for change in [Change::RemovePeer(peer), Change::EndSession(peer), Change::PathChanged(peer)] {
            assert!(change.weight() > small, "{change:?}");
        }
    }
}
