//! The state of one WireGuard interface: its peers, and how the tables find them.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::allowed_ips::AllowedIps;
use crate::config::PeerConfig;
use crate::drop_reason::{DropCounters, DropReason};
use crate::endpoints::Endpoints;
use crate::event::Event;
use crate::gate::Gate;
use crate::initiations::{Cause, Initiations};
use crate::key::{PrivateKey, PublicKey};
use crate::peer::{Endpoint, Peer, PeerId, PeerSnapshot};
use crate::peer_index::PeerIndex;
use crate::refusals::Answers;
use crate::session::Identity;

/// Events that may wait to be polled; the oldest go first, since a later one says more.
const MAX_EVENTS: usize = 1024;

/// Whether resumable work went through or has to be called again once its output has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything is done.
    Done,
    /// The output is full.
    Blocked,
}

/// Bounds and properties of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelConfig {
    /// MTU of the TUN in bytes: no inner packet is padded beyond it.
    pub mtu: u16,
    /// Bytes that may wait for sessions, all peers together.
    pub staging_bytes: usize,
}

/// A peer could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is a peer with this public key already")]
pub struct KeyTaken;

/// How busy a tunnel is with handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeLoad {
    /// Since when there is more to do than there is time for, so that senders have to prove their address.
    pub since: Option<Instant>,
    /// When messages were last left unread for lack of time.
    pub unread_at: Option<Instant>,
    /// What was done since it began, as time of the packet thread.
    pub work: Duration,
    /// Peers that an initiation is due to, and waits for time.
    pub initiations_waiting: usize,
}

/// What a tunnel did since it began.
#[derive(Clone, Debug, Default)]
pub struct TunnelStats {
    /// Inner packets sealed, in segments.
    pub sealed: u64,
    /// Inner packets opened and handed on.
    pub opened: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Handshakes that came through.
    pub handshakes: u64,
    /// Times that handshakes were given up, after 90 s without one that came through (Rekey-Attempt-Time).
    pub handshakes_timed_out: u64,
    /// Handshake initiations sent.
    pub initiations_sent: u64,
    /// Handshake responses sent.
    pub responses_sent: u64,
    /// Cookie replies sent.
    pub cookies_sent: u64,
    /// ICMP errors given to senders of packets that could not go on.
    pub icmp_sent: u64,
    /// ICMP errors that were due and not given, because there were too many.
    pub icmp_suppressed: u64,
    /// Bytes that may wait for sessions, all peers together.
    pub staging_budget_bytes: usize,
    /// Packets that wait for a session now, in bytes.
    pub staged_bytes: usize,
    /// Packets that wait for a session now, in segments.
    pub staged_segments: u64,
}

/// One WireGuard interface, without I/O.
///
/// Its caller passes `now` and buffers in, and takes transmits, plaintext, events and the next deadline out.
/// `now` must never go back.
pub struct Tunnel {
    pub(crate) config: TunnelConfig,
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    pub(crate) free: Vec<PeerId>,
    pub(crate) by_key: FxHashMap<PublicKey, PeerId>,
    pub(crate) by_index: PeerIndex,
    pub(crate) allowed_ips: AllowedIps,
    pub(crate) identity: Identity,
    pub(crate) gate: Gate,
    pub(crate) endpoints: Endpoints,
    pub(crate) initiations: Initiations,
    /// When each peer's next timer is due; at most one entry a peer, never later than its deadline.
    pub(crate) schedule: BTreeSet<(Instant, PeerId)>,
    /// Peers whose staged packets can be sealed.
    pub(crate) ready: VecDeque<PeerId>,
    pub(crate) events: VecDeque<Event>,
    /// Bytes that wait for sessions, by what made them.
    pub(crate) staged: FxHashMap<Cause, usize>,
    /// For the TUN, about packets from there.
    pub(crate) answers: Answers,
    pub(crate) drops: DropCounters,
    pub(crate) stats: TunnelStats,
}

impl Tunnel {
    /// A tunnel without peers.
    pub fn new(private_key: PrivateKey, config: TunnelConfig) -> Self {
        let identity = Identity::new(private_key);
        Self {
            config,
            peers: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            by_index: PeerIndex::default(),
            allowed_ips: AllowedIps::new(),
            gate: Gate::new(&identity.public_key),
            identity,
            endpoints: Endpoints::default(),
            initiations: Initiations::default(),
            schedule: BTreeSet::new(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            staged: FxHashMap::default(),
            answers: Answers::default(),
            drops: DropCounters::default(),
            stats: TunnelStats { staging_budget_bytes: config.staging_bytes, ..TunnelStats::default() },
        }
    }

    /// Adds a peer. Its allowed-ips are taken from the peers that had them.
    ///
    /// # Errors
    /// There is a peer with its key.
    pub fn insert_peer(&mut self, mut config: PeerConfig, now: Instant) -> Result<PeerId, KeyTaken> {
        if self.by_key.contains_key(&config.public_key) {
            return Err(KeyTaken);
        }
        let networks = std::mem::take(&mut config.allowed_ips);
        let endpoint = config.endpoint.map(|address| Endpoint { address, source: None });
        let peer = Box::new(Peer::new(config, now));
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.peers.push(None);
                PeerId::new(self.peers.len() - 1)
            }
        };
        self.by_key.insert(peer.public_key, id);
        self.peers[id.place()] = Some(peer);
        self.set_peer_endpoint(id, endpoint);
        for network in networks {
            self.allow(network, id);
        }
        self.reschedule(id);
        Ok(id)
    }

    /// What one X25519 takes on this machine: the budget of handshakes counts with it. 100 µs until this is called.
    pub fn calibrate(&mut self, x25519: Duration) {
        self.gate.budget.calibrate(x25519);
    }

    /// Takes a peer away, with its sessions and what waited for it. False if there is none with this key.
    pub fn remove_peer(&mut self, key: &PublicKey) -> bool {
        let Some(id) = self.by_key.remove(key) else { return false };
        self.drop_staged(id, DropReason::PeerRemoved);
        // Goes through the whole table: whoever removes many peers takes their prefixes away first.
        if self.peer_mut(id).is_some_and(|peer| peer.prefixes > 0) {
            self.allowed_ips.remove_peer(id);
        }
        self.ready.retain(|ready| *ready != id);
        self.set_peer_endpoint(id, None);
        if let Some(mut peer) = self.peers[id.place()].take() {
            peer.session.clear(&mut self.by_index);
            if let Some(previous) = &mut peer.previous {
                previous.clear(&mut self.by_index);
            }
            if let Some(at) = peer.timers.scheduled.take() {
                self.schedule.remove(&(at, id));
            }
            self.free.push(id);
        }
        true
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Packets dropped so far, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Counts packets that the caller had to drop on their way from or to the tunnel.
    pub fn count_drop(&mut self, reason: DropReason, segments: u64) {
        self.drops.add(reason, segments);
    }

    /// Whether there is time to receive a handshake message or cookie reply now. While there is none it is better left in
    /// the socket: it would be dropped.
    pub fn has_time_for_handshakes(&mut self, now: Instant) -> bool {
        self.gate.budget.grow(now);
        self.gate.budget.has_turn() && self.gate.has_time(now)
    }

    /// How busy it is with handshakes.
    pub fn handshake_load(&self, now: Instant) -> HandshakeLoad {
        HandshakeLoad {
            since: self.gate.budget.loaded_since(now),
            unread_at: self.gate.unread_at(),
            work: self.gate.budget.spent(),
            initiations_waiting: self.initiations.len(),
        }
    }

    /// What it did so far.
    pub fn stats(&self) -> &TunnelStats {
        &self.stats
    }

    /// Every peer as it is now, in no particular order.
    pub fn peers(&self) -> impl Iterator<Item = PeerSnapshot> + '_ {
        self.peers.iter().flatten().map(|peer| peer.snapshot())
    }

    /// Peers from `place` in the table on, at most `count`, and the place to go on at. `None`: those were all.
    ///
    /// A table of many peers is read in slices, so that packets move in between.
    pub fn peers_from(&self, place: usize, count: usize, out: &mut Vec<PeerSnapshot>) -> Option<usize> {
        let end = place.saturating_add(count).min(self.peers.len());
        out.extend(
            self.peers.get(place..end).unwrap_or_default().iter().flatten().map(|peer| peer.snapshot()),
        );
        (end < self.peers.len()).then_some(end)
    }

    /// How many peers there are at most: the size of the table that [`Self::peers_from`] goes through.
    pub fn peer_places(&self) -> usize {
        self.peers.len()
    }

    /// Gives a prefix to a peer, from whoever had it.
    pub(crate) fn allow(&mut self, network: IpNet, id: PeerId) {
        let before = self.allowed_ips.insert(network, id);
        if let Some(before) = before.and_then(|before| self.peer_mut(before)) {
            before.prefixes = before.prefixes.saturating_sub(1);
        }
        if let Some(peer) = self.peer_mut(id) {
            peer.prefixes += 1;
        }
    }

    /// Takes a prefix away from a peer, if it is its own.
    pub(crate) fn disallow(&mut self, network: IpNet, id: PeerId) {
        if self.allowed_ips.remove(network, id)
            && let Some(peer) = self.peer_mut(id)
        {
            peer.prefixes = peer.prefixes.saturating_sub(1);
        }
    }

    pub(crate) fn peer_by_key(&mut self, key: &PublicKey) -> Option<&mut Peer> {
        let id = self.by_key.get(key).copied()?;
        self.peer_mut(id)
    }

    /// The routing table chooses the source address towards the peer from now on: the one it last sent to is
    /// not ours any more.
    pub fn forget_source(&mut self, id: PeerId) {
        if let Some(endpoint) = self.peer_mut(id).and_then(|peer| peer.endpoint.as_mut()) {
            endpoint.source = None;
        }
    }

    pub(crate) fn peer_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(id.place())?.as_deref_mut()
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}
