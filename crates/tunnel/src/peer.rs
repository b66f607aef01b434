//! The state of one peer: its sessions, endpoint, staged packets and timers.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use crate::config::{PeerConfig, PeerSettings};
use crate::endpoints::Endpoint;
use crate::initiations::Cause;
use crate::key::PublicKey;
use crate::limits::{Limit, Limits};
use crate::path_limit::PathLimit;
use crate::peer_id::PeerId;
use crate::peer_timers::PeerTimers;
use crate::session::Session;
use crate::staging::Staging;
use crate::transmit::{Ecn, Path};

/// A peer in the tunnel's table.
pub(crate) struct Peer {
    pub(crate) public_key: PublicKey,
    pub(crate) session: Session,
    /// The session from before the preshared key changed. It seals until a handshake with the new key
    /// completes, and opens datagrams that are in flight at that time.
    pub(crate) previous: Option<Box<Session>>,
    pub(crate) endpoint: Option<Endpoint>,
    /// Size limit of inner packets on the path to the peer.
    pub(crate) path_limit: PathLimit,
    /// Until then the routing table alone chooses the source address towards the peer.
    pub(crate) source_held_until: Option<Instant>,
    /// Number of prefixes of the peer in the table of allowed-ips.
    pub(crate) prefixes: u32,
    /// Rate limits of the peer; most peers have none.
    pub(crate) limits: Option<Box<Limits>>,
    pub(crate) staging: Staging,
    pub(crate) timers: PeerTimers,
    pub(crate) is_ready: bool,
    /// Cause of the next initiation, and whether that waits in the queue of initiations.
    pub(crate) cause: Cause,
    pub(crate) awaits_initiation: bool,
    /// When we last answered an initiation of the peer.
    pub(crate) answered_at: Option<Instant>,
    pub(crate) last_handshake: Option<Instant>,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) arrivals: Arrivals,
}

impl Peer {
    pub(crate) fn new(config: PeerConfig, now: Instant) -> Self {
        let PeerSettings { preshared_key, persistent_keepalive, limits } = config.settings;
        let keepalive = persistent_keepalive.map(NonZeroU16::get).map(u64::from);
        let mut peer = Self {
            public_key: config.public_key,
            session: Session::new(preshared_key),
            previous: None,
            endpoint: None,
            path_limit: PathLimit::default(),
            source_held_until: None,
            prefixes: 0,
            limits: None,
            staging: Staging::default(),
            timers: PeerTimers::new(keepalive.map(Duration::from_secs), rand::random(), now),
            is_ready: false,
            cause: Cause::Keepalive,
            awaits_initiation: false,
            answered_at: None,
            last_handshake: None,
            sent_bytes: 0,
            received_bytes: 0,
            arrivals: Arrivals::default(),
        };
        Limits::change(&mut peer.limits, limits, now);
        peer
    }

    /// Returns the session that seals packets to the peer, or a session that cannot seal if there is none.
    #[inline]
    pub(crate) fn in_use(&mut self, now: Instant) -> &mut Session {
        match &mut self.previous {
            Some(old) if !self.session.can_seal(now) => old,
            _ => &mut self.session,
        }
    }

    /// Returns the session that opens a message, by boringtun's index.
    #[inline]
    pub(crate) fn opening(&mut self, index: u32) -> &mut Session {
        match &mut self.previous {
            Some(old) if old.has_index(index) => old,
            _ => &mut self.session,
        }
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Session> {
        [Some(&self.session), self.previous.as_deref()].into_iter().flatten()
    }

    pub(crate) fn sessions_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        [Some(&mut self.session), self.previous.as_deref_mut()].into_iter().flatten()
    }

    /// Reports whether a message arrived on a session that is newer than the last move of the peer.
    pub(crate) fn is_next_session_in_use(&self) -> bool {
        self.sessions().any(Session::is_next_in_use)
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
            arrivals: self.arrivals,
            staged_bytes: self.staging.bytes(),
            path_limit: self.path_limit.known(),
            is_trying: self.timers.is_trying(),
            over_rate_to_peer: dropped(|limits| limits.to_peer.as_ref()),
            over_rate_from_peer: dropped(|limits| limits.from_peer.as_ref()),
        }
    }

    /// Returns the path of a datagram to the peer; `None` while its endpoint is unknown.
    pub(crate) fn path(&self, id: PeerId, ecn: Ecn) -> Option<Path> {
        let endpoint = self.endpoint?;
        Some(Path { peer: id, destination: endpoint.address, source: endpoint.source, ecn })
    }
}

/// Data messages of a peer, counted by the counters that they carry (whitepaper, section 5.4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Messages that the peer sent, as the counters of those that arrived tell.
    pub expected: u64,
    /// Authentic messages that arrived.
    pub received: u64,
    /// Those of them that arrived after a later one.
    pub displaced: u64,
}

impl Arrivals {
    /// Records a message that is ahead of those before it by `advance`.
    #[inline]
    pub(crate) fn record(&mut self, advance: u64) {
        // A peer chooses its counters.
        self.expected = self.expected.saturating_add(advance);
        self.received += 1;
        self.displaced += u64::from(advance == 0);
    }
}

/// State of a peer, for status and metrics.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// Public key, which identifies the peer.
    pub public_key: PublicKey,
    /// Endpoint, if it is known.
    pub endpoint: Option<SocketAddr>,
    /// The local address that the peer sends to, used as the source of datagrams to it.
    pub source: Option<IpAddr>,
    /// When the last handshake completed.
    pub last_handshake: Option<Instant>,
    /// UDP payload bytes sent to the peer, handshakes included.
    pub sent_bytes: u64,
    /// UDP payload bytes received from the peer and authenticated, handshakes included.
    pub received_bytes: u64,
    /// Data messages received from the peer.
    pub arrivals: Arrivals,
    /// Bytes of staged packets, which wait for a session.
    pub staged_bytes: usize,
    /// Bytes of the largest inner packet that the path carries in one piece, if a small path MTU was learnt.
    pub path_limit: Option<u16>,
    /// Whether a handshake is being attempted and has not completed yet.
    pub is_trying: bool,
    /// Packets to the peer dropped by its rate limit since that was set; a super-packet counts once per
    /// segment.
    pub over_rate_to_peer: u64,
    /// Packets from the peer dropped by its rate limit since that was set.
    pub over_rate_from_peer: u64,
}
