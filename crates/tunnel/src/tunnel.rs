//! The state of one WireGuard interface: its peers and the tables that find them.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::allowed_ips::AllowedIps;
use crate::config::PeerConfig;
use crate::cookie::CookieRoot;
use crate::drop_reason::{DropCounters, DropReason};
use crate::endpoints::Endpoint;
use crate::endpoints::Endpoints;
use crate::event::Event;
use crate::foreign_peers::ForeignPeers;
use crate::gate::Gate;
use crate::icmp_answers::Answers;
use crate::initiations::{Cause, Initiations};
use crate::key::{PrivateKey, PublicKey};
use crate::moved_index::MovedIndex;
use crate::peer::{Peer, PeerSnapshot};
use crate::peer_id::PeerId;
use crate::peer_index::PeerIndex;
use crate::session::Identity;
use crate::shard::Shard;

/// Maximum number of events that wait to be polled. The oldest is dropped first, because a later event says
/// more.
const MAX_EVENTS: usize = 1024;

/// Whether resumable work is complete, or has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All work is done.
    Done,
    /// The output is full, or the limit of work for one call is reached: work remains.
    Blocked,
}

/// MTU and memory bound of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelConfig {
    /// MTU of the TUN in bytes: no inner packet is padded beyond it.
    pub mtu: u16,
    /// Maximum bytes of staged packets, which wait for a session, over all peers.
    pub staging_bytes: usize,
}

/// Error of [`Tunnel::insert_peer`]: the tunnel already has a peer with this public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a peer with this public key exists already")]
pub struct KeyTaken;

/// Handshake load of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeLoad {
    /// When handshake work began to exceed its budget. While this is set, senders have to prove their address
    /// with a cookie.
    pub since: Option<Instant>,
    /// When the budget for received messages was last exhausted, so that messages stay unread.
    pub unread_at: Option<Instant>,
    /// Handshake work since the tunnel was created, as nominal time of the packet thread, without the checks
    /// of received messages.
    pub work: Duration,
    /// Initiations that are due and wait for the budget.
    pub initiations_waiting: usize,
}

/// Counters of a tunnel since its creation, and the packets that are staged now.
#[derive(Clone, Debug, Default)]
pub struct TunnelStats {
    /// Inner packets sealed; a super-packet counts once per segment.
    pub sealed: u64,
    /// Inner packets opened and returned to the caller.
    pub opened: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Handshakes completed.
    pub handshakes: u64,
    /// Times that handshakes were given up after 90 s without completion (Rekey-Attempt-Time).
    pub handshakes_timed_out: u64,
    /// Handshake initiations sent.
    pub initiations_sent: u64,
    /// Handshake responses sent.
    pub responses_sent: u64,
    /// Cookie replies sent.
    pub cookies_sent: u64,
    /// ICMP errors queued for the TUN, in answer to packets that the tunnel refused.
    pub icmp_sent: u64,
    /// ICMP errors that were due but not queued, because of their rate limit or for lack of a slot.
    pub icmp_suppressed: u64,
    /// Maximum bytes of staged packets, which wait for a session, over all peers.
    pub staging_budget_bytes: usize,
    /// Bytes of the packets that are staged now.
    pub staged_bytes: usize,
    /// Packets that are staged now; a super-packet counts once per segment.
    pub staged_segments: u64,
}

/// One WireGuard interface, or one shard of it, without I/O.
///
/// The caller passes in `now` and buffers, and takes out transmits, plaintext, events and the next deadline.
/// `now` must never go back.
pub struct Tunnel {
    pub(crate) config: TunnelConfig,
    /// The peers of this shard. Foreign peers have an empty place here.
    pub(crate) peers: Vec<Option<Box<Peer>>>,
    pub(crate) foreign: ForeignPeers,
    pub(crate) free: Vec<PeerId>,
    pub(crate) by_key: FxHashMap<PublicKey, PeerId>,
    pub(crate) by_index: PeerIndex,
    pub(crate) allowed_ips: AllowedIps,
    pub(crate) identity: Identity,
    pub(crate) gate: Gate,
    pub(crate) endpoints: Endpoints,
    pub(crate) initiations: Initiations,
    /// Indices of peers that moved away from this shard, while messages may still carry them.
    pub(crate) moved: Vec<MovedIndex>,
    /// Indices of the sessions of peers that moved to this shard: those that messages carry, and those by
    /// which this shard knows the sessions.
    pub(crate) renamed: FxHashMap<u32, u32>,
    /// Wake-up times for the timers of the peers: at most one entry per peer, never later than its next
    /// deadline.
    pub(crate) schedule: BTreeSet<(Instant, PeerId)>,
    /// Peers whose staged packets can be sealed.
    pub(crate) ready: VecDeque<PeerId>,
    pub(crate) events: VecDeque<Event>,
    /// Staged bytes by the cause of the packets.
    pub(crate) staged: FxHashMap<Cause, usize>,
    /// ICMP answers for the TUN, to packets read from it.
    pub(crate) answers: Answers,
    pub(crate) drops: DropCounters,
    pub(crate) stats: TunnelStats,
}

impl Tunnel {
    /// Creates a tunnel without peers, the only one of its interface.
    pub fn new(private_key: PrivateKey, config: TunnelConfig) -> Self {
        Self::with_cookies(private_key, config, Shard::ONLY, CookieRoot::unshared())
    }

    /// Creates a tunnel without peers for one shard of an interface. All shards have the same key, and copies
    /// of the same root of cookies.
    pub fn of_shard(
        private_key: PrivateKey,
        config: TunnelConfig,
        shard: Shard,
        cookies: &CookieRoot,
    ) -> Self {
        Self::with_cookies(private_key, config, shard, cookies.clone())
    }

    fn with_cookies(
        private_key: PrivateKey,
        config: TunnelConfig,
        shard: Shard,
        cookies: CookieRoot,
    ) -> Self {
        let identity = Identity::new(private_key);
        Self {
            config,
            peers: Vec::new(),
            foreign: ForeignPeers::default(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            by_index: PeerIndex::new(shard),
            allowed_ips: AllowedIps::new(),
            gate: Gate::new(&identity.public_key, cookies),
            identity,
            endpoints: Endpoints::default(),
            initiations: Initiations::default(),
            moved: Vec::new(),
            renamed: FxHashMap::default(),
            schedule: BTreeSet::new(),
            ready: VecDeque::new(),
            events: VecDeque::new(),
            staged: FxHashMap::default(),
            answers: Answers::default(),
            drops: DropCounters::default(),
            stats: TunnelStats { staging_budget_bytes: config.staging_bytes, ..TunnelStats::default() },
        }
    }

    /// Adds a peer. Allowed-ips that belong to other peers move to it. A foreign peer with this public key
    /// becomes a peer of this shard.
    ///
    /// # Errors
    /// [`KeyTaken`] if this shard already has a peer with this public key.
    pub fn insert_peer(&mut self, mut config: PeerConfig, now: Instant) -> Result<PeerId, KeyTaken> {
        if self.peer_by_key(&config.public_key).is_some() {
            return Err(KeyTaken);
        }
        let networks = std::mem::take(&mut config.allowed_ips);
        let endpoint = config.endpoint.map(|address| Endpoint { address, source: None });
        let mut peer = Box::new(Peer::new(config, now));
        let id = self.place_of(peer.public_key);
        peer.prefixes = self.vacate(id);
        self.forget_moved_indices(id);
        self.peers[id.place()] = Some(peer);
        self.set_peer_endpoint(id, endpoint);
        self.set_allowed_ips(id, networks);
        self.reschedule(id);
        Ok(id)
    }

    /// Returns which of the packet threads of the interface this tunnel is for.
    #[inline]
    pub fn shard(&self) -> Shard {
        self.by_index.shard()
    }

    /// Returns the place of the peer with this key, and assigns one if the key is new.
    pub(crate) fn place_of(&mut self, key: PublicKey) -> PeerId {
        let Self { by_key, free, peers, .. } = self;
        *by_key.entry(key).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                peers.push(None);
                PeerId::new(peers.len() - 1)
            })
        })
    }

    /// Ends everything that a place holds of a peer, except its prefixes, and returns their number.
    pub(crate) fn vacate(&mut self, id: PeerId) -> u32 {
        self.set_foreign_endpoint(id, None);
        if let Some(foreign) = self.foreign.take(id) {
            return foreign.prefixes;
        }
        if self.peer_mut(id).is_none() {
            return 0;
        }
        self.drop_staged(id, DropReason::PeerRemoved);
        self.ready.retain(|ready| *ready != id);
        self.set_peer_endpoint(id, None);
        let Some(mut peer) = self.peers[id.place()].take() else { return 0 };
        peer.session.clear(&mut self.by_index);
        if let Some(previous) = &mut peer.previous {
            previous.clear(&mut self.by_index);
        }
        if let Some(at) = peer.timers.scheduled.take() {
            self.schedule.remove(&(at, id));
        }
        peer.prefixes
    }

    /// Takes a measurement of how long one X25519 takes on this machine, which is the unit of the handshake
    /// budget. The shortest measurement counts; before the first it is 100 µs.
    ///
    /// Returns whether the budget grew by a tenth or more.
    pub fn calibrate(&mut self, x25519: Duration) -> bool {
        self.gate.budget.calibrate(x25519)
    }

    /// Sets or clears the endpoint of a peer, and keeps the count of addresses in step.
    pub(crate) fn set_peer_endpoint(&mut self, id: PeerId, endpoint: Option<Endpoint>) {
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return };
        let before = std::mem::replace(&mut peer.endpoint, endpoint).map(|endpoint| endpoint.address.ip());
        let after = endpoint.map(|endpoint| endpoint.address.ip());
        self.endpoints.replace(before, after);
    }

    /// Iterates over the receiver indices (all 32 bits) that a data message, handshake response or cookie
    /// reply to us may carry now, in no particular order.
    pub fn receiver_indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_index.iter()
    }

    /// Returns a number that changes whenever [`Self::receiver_indices`] changes.
    pub fn receiver_indices_version(&self) -> u64 {
        self.by_index.version()
    }

    /// Removes a peer with its sessions and staged packets. Returns false if no peer has this key.
    pub fn remove_peer(&mut self, key: &PublicKey) -> bool {
        let Some(id) = self.by_key.remove(key) else { return false };
        // Scans the whole table. A caller that removes many peers therefore removes their prefixes first.
        if self.vacate(id) > 0 {
            self.allowed_ips.remove_peer(id);
        }
        self.forget_moved_indices(id);
        self.free.push(id);
        true
    }

    /// Returns the oldest event that was not polled yet.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of packets dropped so far, by reason.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Adds `segments` packets to the counter of `reason`, for packets that the caller dropped on their way
    /// to or from the tunnel.
    pub fn count_drop(&mut self, reason: DropReason, segments: u64) {
        self.drops.add(reason, segments);
    }

    /// Reports whether the budget and the current turn have time to receive a handshake message or cookie
    /// reply. While they do not, the caller should leave such messages in the socket: the tunnel drops what
    /// exceeds its budget.
    pub fn has_time_for_handshakes(&mut self, now: Instant) -> bool {
        self.gate.budget.grow(now);
        self.gate.budget.has_turn() && self.gate.has_time(now)
    }

    /// Returns the handshake load at `now`.
    pub fn handshake_load(&self, now: Instant) -> HandshakeLoad {
        HandshakeLoad {
            since: self.gate.budget.loaded_since(now),
            unread_at: self.gate.unread_at(),
            work: self.gate.budget.spent(),
            initiations_waiting: self.initiations.len(),
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> &TunnelStats {
        &self.stats
    }

    /// Iterates over snapshots of the peers of this shard, in no particular order.
    pub fn peers(&self) -> impl Iterator<Item = PeerSnapshot> + '_ {
        self.peers.iter().flatten().map(|peer| peer.snapshot())
    }

    /// Appends snapshots of the peers of this shard in at most `count` table places, starting at `place`.
    /// Returns the place to continue at, or `None` at the end of the table.
    ///
    /// A caller reads a large table in slices, so that packets move in between.
    pub fn peers_from(&self, place: usize, count: usize, out: &mut Vec<PeerSnapshot>) -> Option<usize> {
        let end = place.saturating_add(count).min(self.peers.len());
        out.extend(
            self.peers.get(place..end).unwrap_or_default().iter().flatten().map(|peer| peer.snapshot()),
        );
        (end < self.peers.len()).then_some(end)
    }

    /// Assigns a prefix to a peer, and takes it from the peer that it belonged to.
    pub(crate) fn allow(&mut self, network: IpNet, id: PeerId) {
        let before = self.allowed_ips.insert(network, id);
        if let Some(prefixes) = before.and_then(|before| self.prefixes_mut(before)) {
            *prefixes = prefixes.saturating_sub(1);
        }
        if let Some(prefixes) = self.prefixes_mut(id) {
            *prefixes += 1;
        }
    }

    /// Removes a prefix from a peer, if it belongs to that peer.
    pub(crate) fn disallow(&mut self, network: IpNet, id: PeerId) {
        if self.allowed_ips.remove(network, id)
            && let Some(prefixes) = self.prefixes_mut(id)
        {
            *prefixes = prefixes.saturating_sub(1);
        }
    }

    /// Assigns these prefixes to a peer, and removes its others.
    pub(crate) fn set_allowed_ips(&mut self, id: PeerId, mut networks: Vec<IpNet>) {
        let is_new = self.prefixes_mut(id).is_none_or(|prefixes| *prefixes == 0);
        for network in &networks {
            self.allow(*network, id);
        }
        if is_new {
            return;
        }
        networks.iter_mut().for_each(|network| *network = network.trunc());
        networks.sort_unstable();
        networks.dedup();
        if self.prefixes_mut(id).is_some_and(|prefixes| *prefixes as usize > networks.len()) {
            // Scans the whole table, which a peer that only moves between shards does not need.
            self.allowed_ips.remove_peer(id);
            if let Some(prefixes) = self.prefixes_mut(id) {
                *prefixes = 0;
            }
            for network in networks {
                self.allow(network, id);
            }
        }
    }

    /// The number of prefixes of a peer, own or foreign.
    fn prefixes_mut(&mut self, id: PeerId) -> Option<&mut u32> {
        match self.peers.get_mut(id.place())? {
            Some(peer) => Some(&mut peer.prefixes),
            None => self.foreign.get_mut(id).map(|peer| &mut peer.prefixes),
        }
    }

    pub(crate) fn peer_by_key(&mut self, key: &PublicKey) -> Option<&mut Peer> {
        let id = self.by_key.get(key).copied()?;
        self.peer_mut(id)
    }

    /// Forgets the source address for packets to the peer, because it may no longer belong to this machine.
    /// The routing table chooses the source until a message from the peer sets it again.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Work;

    fn tunnel() -> Tunnel {
        Tunnel::new(PrivateKey::from_bytes([1; 32]), TunnelConfig { mtu: 1420, staging_bytes: 1 << 20 })
    }

    #[test]
    fn the_newest_events_are_kept() {
        let mut tunnel = tunnel();
        let event = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            Event::HandshakeFailed { peer: PublicKey::from_bytes(key) }
        };
        (0..MAX_EVENTS + 2).for_each(|number| tunnel.push_event(event(number)));
        let kept: Vec<_> = std::iter::from_fn(|| tunnel.poll_event()).collect();
        assert_eq!(kept, (2..MAX_EVENTS + 2).map(event).collect::<Vec<_>>());
    }

    #[test]
    fn handshakes_have_time_within_the_turn_and_the_budget() {
        let (mut tunnel, now) = (tunnel(), Instant::now());
        assert!(tunnel.has_time_for_handshakes(now));
        (0..3).for_each(|_| tunnel.gate.budget.spend(Work::Answer));
        assert!(!tunnel.has_time_for_handshakes(now), "the turn is over");
        let next_turn = now + Duration::from_nanos(1);
        assert!(tunnel.has_time_for_handshakes(next_turn));
        while tunnel.gate.budget.has_check() {
            tunnel.gate.budget.spend(Work::Check);
        }
        let turn_after = next_turn + Duration::from_nanos(1);
        assert!(!tunnel.has_time_for_handshakes(turn_after), "no budget is left");
        let load = tunnel.handshake_load(turn_after);
        assert_eq!((load.since, load.unread_at), (Some(turn_after), Some(turn_after)));
    }

    #[test]
    fn a_shorter_measurement_makes_room_for_more_handshakes() {
        let mut tunnel = tunnel();
        assert!(!tunnel.calibrate(Duration::from_micros(100)));
        assert!(tunnel.calibrate(Duration::from_micros(50)));
        assert!(!tunnel.calibrate(Duration::from_micros(50)));
    }
}
