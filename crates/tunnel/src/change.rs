//! Changing peers while packets move: what wg(8) does to an interface that runs. Nothing here costs more than a look into
//! a table: an X25519 is done when the first handshake needs it, within the budget of handshakes.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::config::PeerConfig;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::limits::{Limits, PeerLimits};
use crate::path::PathLimit;
use crate::peer::Endpoint;
use crate::restore::Remembered;
use crate::session::Identity;
use crate::tunnel::Tunnel;

/// One change to a running tunnel. A peer that is not there any more makes it void.
#[derive(Debug)]
pub enum Change {
    /// Adds a peer. Its key must be new to the tunnel.
    AddPeer(Box<PeerConfig>),
    /// Takes a peer away, with its sessions and what waited for it.
    RemovePeer(PublicKey),
    /// Sends to another place from now on. Sessions stay; a peer that had none gets its keepalive at once.
    Endpoint {
        /// The peer.
        peer: PublicKey,
        /// Where it is.
        endpoint: SocketAddr,
    },
    /// Another keepalive interval. Sessions stay; one that is switched on is sent at once.
    PersistentKeepalive {
        /// The peer.
        peer: PublicKey,
        /// Seconds, or none.
        interval: Option<NonZeroU16>,
    },
    /// Other limits of how fast packets may go to a peer and come from it. Sessions stay.
    Limits {
        /// The peer.
        peer: PublicKey,
        /// Its limits from now on.
        limits: PeerLimits,
    },
    /// Prefixes that are given to a peer, from whoever had them, or taken away from it.
    AllowedIps {
        /// The peer.
        peer: PublicKey,
        /// Its own from now on. Given before others are taken away.
        add: Vec<IpNet>,
        /// Its own no longer; what is not its own is left alone.
        remove: Vec<IpNet>,
    },
    /// Handshakes with another preshared key from now on, or with the wall clock's time as it is now. What was agreed
    /// before is used until the next handshake came through, as the kernel's WireGuard does.
    PresharedKey {
        /// The peer.
        peer: PublicKey,
        /// The key that is mixed into its handshakes, if there is one.
        key: Option<PresharedKey>,
    },
    /// Another identity: handshakes made for the old one are not answered any more. The peers' sessions have to end as
    /// well.
    PrivateKey(PrivateKey),
    /// Ends the sessions with a peer, which were agreed with another identity.
    EndSession(PublicKey),
    /// Another MTU of the TUN, in bytes.
    Mtu(u16),
    /// The way to a peer changed: this machine reaches it from another address, or by another route. The routing
    /// table chooses the source again, what was learnt of the path's MTU is forgotten, and a peer with a session
    /// hears from us at once; one that remains silent is asked by a handshake.
    PathChanged(PublicKey),
    /// This machine slept, and its clock stood still: sessions are older than they seem. A peer with a session hears
    /// from us at once, by a handshake if it must have forgotten the session.
    Resumed {
        /// The peer.
        peer: PublicKey,
        /// For how long.
        slept: Duration,
    },
    /// What a tunnel before this one knew of a peer that was just added.
    Restore {
        /// The peer.
        peer: PublicKey,
        /// What is remembered of it.
        remembered: Remembered,
    },
}

impl Change {
    /// About how many table entries it touches: many small changes cost as much as one large one.
    pub fn weight(&self) -> usize {
        match self {
            Self::AddPeer(peer) => 4 + peer.allowed_ips.len(),
            Self::AllowedIps { add, remove, .. } => 1 + add.len() + remove.len(),
            Self::PathChanged(_) | Self::Resumed { .. } | Self::Restore { .. } => 2,
            Self::RemovePeer(_) | Self::PresharedKey { .. } | Self::EndSession(_) => 4,
            _ => 1,
        }
    }
}

impl Tunnel {
    /// Applies one change. False if it was void: its peer is gone, or the peer to be added is there already.
    pub fn apply(&mut self, change: Change, now: Instant) -> bool {
        match change {
            Change::AddPeer(peer) => self.insert_peer(*peer, now).is_ok(),
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
        let Some(peer) = self.peer_mut(id) else { return false };
        if peer.endpoint.is_none() {
            peer.timers.endpoint_found(now);
        }
        // The same place: the source that the peer knows stays.
        if peer.endpoint.is_none_or(|endpoint| endpoint.address != address) {
            peer.path_limit = PathLimit::default();
            self.set_peer_endpoint(id, Some(Endpoint { address, source: None }));
        }
        self.reschedule(id);
        true
    }

    fn set_keepalive(&mut self, key: &PublicKey, interval: Option<NonZeroU16>, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        if let Some(peer) = self.peer_mut(id) {
            let interval = interval.map(|seconds| Duration::from_secs(seconds.get().into()));
            peer.timers.set_persistent_interval(interval, now);
        }
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
        // One that was never used gives way: what is older may still be in use.
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
