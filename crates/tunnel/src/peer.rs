//! One peer: its sessions, where it is, what waits for it, and when something is due.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use crate::config::PeerConfig;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::limits::{Limit, Limits};
use crate::path::PathLimit;
use crate::peer_index::INDEX_BITS;
use crate::session::{Session, SessionBuilder};
use crate::staging::Staging;
use crate::timers::Timers;
use crate::transmit::{Ecn, Path};

/// The place of a peer in the tunnel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(u32);

impl PeerId {
    pub(crate) fn new(place: usize) -> Self {
        Self(place as u32)
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(crate) fn for_test(id: u32) -> Self {
        Self(id)
    }
}

/// Where a peer is, as its last authenticated message or the configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The local address that it sends to: the source of what goes to it.
    pub(crate) source: Option<IpAddr>,
}

/// Makes [`NewPeer`]s away from the packet thread: each costs an X25519 (tens of microseconds).
#[derive(Clone)]
pub struct PeerBuilder {
    public_key: PublicKey,
    sessions: SessionBuilder,
}

impl PeerBuilder {
    /// Peers of the interface with this key.
    pub fn new(private_key: &PrivateKey) -> Self {
        Self { public_key: private_key.public_key(), sessions: SessionBuilder::new(private_key.clone()) }
    }

    /// The public key of the interface.
    pub fn public_key(&self) -> PublicKey {
        self.public_key
    }

    /// A peer, ready to be inserted, with a random index.
    pub fn build(&self, config: PeerConfig) -> NewPeer {
        let index = rand::random::<u32>() >> (32 - INDEX_BITS);
        let session = self.sessions.build(config.public_key, config.preshared_key.as_ref(), index);
        NewPeer { config, index, session }
    }

    /// A session for a peer that is in the tunnel already, with a random index.
    pub fn build_session(&self, peer: PublicKey, preshared_key: Option<&PresharedKey>) -> NewSession {
        let index = rand::random::<u32>() >> (32 - INDEX_BITS);
        NewSession { index, session: self.sessions.build(peer, preshared_key, index) }
    }
}

/// A session that is not in a tunnel yet.
pub struct NewSession {
    pub(crate) index: u32,
    pub(crate) session: Session,
}

impl NewSession {
    /// Its random 24-bit index, which no other session of the tunnel may have.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl fmt::Debug for NewSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSession").field("index", &self.index).finish_non_exhaustive()
    }
}

/// A peer that is not in a tunnel yet.
pub struct NewPeer {
    pub(crate) config: PeerConfig,
    pub(crate) index: u32,
    pub(crate) session: Session,
}

impl NewPeer {
    /// Its identity.
    pub fn public_key(&self) -> PublicKey {
        self.config.public_key
    }

    /// Its random 24-bit index, which no other peer of the tunnel may have.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// What it was built from.
    pub fn config(&self) -> &PeerConfig {
        &self.config
    }

    /// What it was built from, to build it again when its random index is taken.
    pub fn into_config(self) -> PeerConfig {
        self.config
    }
}

impl fmt::Debug for NewPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewPeer").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What a peer used before its preshared key changed: good until a handshake with the new one came through, and for
/// what is still on its way then.
pub(crate) struct Previous {
    pub(crate) index: u32,
    pub(crate) session: Session,
}

/// A peer in the tunnel's table.
pub(crate) struct Peer {
    pub(crate) public_key: PublicKey,
    pub(crate) index: u32,
    pub(crate) session: Session,
    pub(crate) previous: Option<Box<Previous>>,
    pub(crate) endpoint: Option<Endpoint>,
    /// The largest packets that its path carries.
    pub(crate) path_limit: PathLimit,
    /// Until when the routing table alone chooses the source towards it.
    pub(crate) source_held_until: Option<Instant>,
    /// How many prefixes the table of allowed-ips has of it.
    pub(crate) prefixes: usize,
    /// How fast packets may go to it and come from it; for most, as fast as they can.
    pub(crate) limits: Option<Box<Limits>>,
    pub(crate) staging: Staging,
    pub(crate) timers: Timers,
    pub(crate) is_ready: bool,
    pub(crate) last_handshake: Option<Instant>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

impl Peer {
    pub(crate) fn new(new: NewPeer, now: Instant) -> Self {
        let keepalive = new.config.persistent_keepalive.map(NonZeroU16::get).map(u64::from);
        Self {
            public_key: new.config.public_key,
            index: new.index,
            session: new.session,
            previous: None,
            endpoint: new.config.endpoint.map(|address| Endpoint { address, source: None }),
            path_limit: PathLimit::default(),
            source_held_until: None,
            prefixes: 0,
            limits: None,
            staging: Staging::default(),
            timers: Timers::new(keepalive.map(Duration::from_secs), new.index, now),
            is_ready: false,
            last_handshake: None,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// The session that packets to the peer are sealed with, if there is one.
    #[inline]
    pub(crate) fn in_use(&mut self, now: Instant) -> &mut Session {
        match &mut self.previous {
            Some(old) if !self.session.can_seal(now) => &mut old.session,
            _ => &mut self.session,
        }
    }

    /// The session that a data message with this index is for.
    #[inline]
    pub(crate) fn opening(&mut self, receiver_index: u32) -> &mut Session {
        let index = receiver_index >> (32 - INDEX_BITS);
        match &mut self.previous {
            Some(old) if old.index == index => &mut old.session,
            _ => &mut self.session,
        }
    }

    pub(crate) fn snapshot(&self) -> PeerSnapshot {
        let dropped = |limit: fn(&Limits) -> Option<&Limit>| {
            self.limits.as_deref().and_then(limit).map_or(0, |limit| limit.dropped)
        };
        PeerSnapshot {
            public_key: self.public_key,
            endpoint: self.endpoint.map(|endpoint| endpoint.address),
            source: self.endpoint.and_then(|endpoint| endpoint.source),
            last_handshake: self.last_handshake,
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
            staged_bytes: self.staging.bytes(),
            path_limit: self.path_limit.known(),
            is_trying: self.timers.is_trying(),
            over_rate_to_peer: dropped(|limits| limits.to_peer.as_ref()),
            over_rate_from_peer: dropped(|limits| limits.from_peer.as_ref()),
        }
    }

    /// The way of a datagram to the peer; `None` while nobody knows where it is.
    pub(crate) fn path(&self, id: PeerId, ecn: Ecn) -> Option<Path> {
        let endpoint = self.endpoint?;
        Some(Path { peer: id, destination: endpoint.address, source: endpoint.source, ecn })
    }
}

/// What is known of a peer, for status and metrics.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// Its identity.
    pub public_key: PublicKey,
    /// Where it is.
    pub endpoint: Option<SocketAddr>,
    /// The local address that it sends to: the source of what goes to it.
    pub source: Option<IpAddr>,
    /// When its last handshake came through.
    pub last_handshake: Option<Instant>,
    /// UDP payload bytes sent to it, handshakes included.
    pub sent_bytes: u64,
    /// UDP payload bytes received from it and authenticated, handshakes included.
    pub received_bytes: u64,
    /// Bytes of packets that wait for a session.
    pub staged_bytes: usize,
    /// Bytes of the largest inner packet that its path carries in one piece, if its MTU was found to be small.
    pub path_limit: Option<u16>,
    /// Whether a handshake is being tried and did not come through yet.
    pub is_trying: bool,
    /// Packets to it that were dropped for its limit since that was set, as the wire would have seen them.
    pub over_rate_to_peer: u64,
    /// Packets from it that were dropped for its limit since that was set.
    pub over_rate_from_peer: u64,
}
