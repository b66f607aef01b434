//! One peer: its sessions, where it is, what waits for it, and when something is due.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use crate::config::PeerConfig;
use crate::initiations::Cause;
use crate::key::PublicKey;
use crate::limits::{Limit, Limits};
use crate::path::PathLimit;
use crate::session::Session;
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

/// A peer in the tunnel's table.
pub(crate) struct Peer {
    pub(crate) public_key: PublicKey,
    pub(crate) session: Session,
    /// What it used before its preshared key changed: good until a handshake with the new one came through, and for what
    /// is still on its way then.
    pub(crate) previous: Option<Box<Session>>,
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
    /// What its next initiation is for, and whether it waits for its turn.
    pub(crate) cause: Cause,
    pub(crate) awaits_initiation: bool,
    /// When an initiation of the peer was answered last.
    pub(crate) answered_at: Option<Instant>,
    pub(crate) last_handshake: Option<Instant>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig, now: Instant) -> Self {
        let keepalive = config.persistent_keepalive.map(NonZeroU16::get).map(u64::from);
        Self {
            public_key: config.public_key,
            session: Session::new(config.preshared_key),
            previous: None,
            endpoint: None,
            path_limit: PathLimit::default(),
            source_held_until: None,
            prefixes: 0,
            limits: None,
            staging: Staging::default(),
            timers: Timers::new(keepalive.map(Duration::from_secs), rand::random(), now),
            is_ready: false,
            cause: Cause::Keepalive,
            awaits_initiation: false,
            answered_at: None,
            last_handshake: None,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    /// The session that packets to the peer are sealed with, if there is one.
    #[inline]
    pub(crate) fn in_use(&mut self, now: Instant) -> &mut Session {
        match &mut self.previous {
            Some(old) if !self.session.can_seal(now) => old,
            _ => &mut self.session,
        }
    }

    /// The session that a message is for, by boringtun's index.
    #[inline]
    pub(crate) fn opening(&mut self, index: u32) -> &mut Session {
        match &mut self.previous {
            Some(old) if old.has_index(index) => old,
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
