//! The state of one WireGuard interface: its peers, and how the tables find them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::allowed_ips::AllowedIps;
use crate::drop_reason::{DropCounters, DropReason};
use crate::event::Event;
use crate::key::{PrivateKey, PublicKey};
use crate::peer::{NewPeer, Peer, PeerId, PeerSnapshot};
use crate::peer_index::PeerIndex;
use crate::refusals::Answers;
use crate::session::Gate;
use crate::source_limit::SourceLimit;

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

/// Why a peer could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// Its random index belongs to another peer: build it again.
    #[error("the random index of the peer is taken")]
    IndexTaken,
    /// There is a peer with its key already.
    #[error("there is a peer with this public key already")]
    KeyTaken,
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
    pub(crate) gate: Gate,
    pub(crate) sources: SourceLimit,
    /// When each peer's next timer is due; at most one entry a peer, never later than its deadline.
    pub(crate) schedule: BTreeSet<(Instant, PeerId)>,
    /// Peers whose staged packets can be sealed.
    pub(crate) ready: VecDeque<PeerId>,
    pub(crate) events: VecDeque<Event>,
    /// For the TUN, about packets from there.
    pub(crate) answers: Answers,
    pub(crate) drops: DropCounters,
    pub(crate) stats: TunnelStats,
}

impl Tunnel {
    /// A tunnel without peers.
    pub fn new(private_key: PrivateKey, config: TunnelConfig) -> Self {
        Self {
            config,
            peers: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            by_index: PeerIndex::default(),
            allowed_ips: AllowedIps::new(),
            gate: Gate::new(private_key),
            sources: SourceLimit::new(),
            schedule: BTreeSet::new(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            answers: Answers::default(),
            drops: DropCounters::default(),
            stats: TunnelStats { staging_budget_bytes: config.staging_bytes, ..TunnelStats::default() },
        }
    }

    /// Adds a peer. Its allowed-ips are taken from the peers that had them.
    pub fn insert_peer(
        &mut self,
        mut new: NewPeer,
        now: Instant,
    ) -> Result<PeerId, (InsertError, Box<NewPeer>)> {
        if self.by_key.contains_key(&new.config.public_key) {
            return Err((InsertError::KeyTaken, Box::new(new)));
        }
        let id = self.free.last().copied().unwrap_or_else(|| PeerId::new(self.peers.len()));
        if !self.by_index.insert(new.index, id) {
            return Err((InsertError::IndexTaken, Box::new(new)));
        }
        let networks = std::mem::take(&mut new.config.allowed_ips);
        let peer = Box::new(Peer::new(new, now));
        self.by_key.insert(peer.public_key, id);
        match self.free.pop() {
            Some(_) => self.peers[id.place()] = Some(peer),
            None => self.peers.push(Some(peer)),
        }
        for network in networks {
            self.allow(network, id);
        }
        self.reschedule(id);
        Ok(id)
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
        if let Some(mut peer) = self.peers[id.place()].take() {
            self.by_index.remove(peer.index);
            if let Some(previous) = &peer.previous {
                self.by_index.remove(previous.index);
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
