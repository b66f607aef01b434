//! Moves a peer from one shard of the interface to another, with everything that is known of it: sessions and
//! their counters, timers, staged packets, limits.
//!
//! The receiver indices of its sessions still name the shard that drew them, so the kernel delivers their
//! messages there. That shard keeps the routes of these indices, which lead to a foreign peer from now on,
//! and hands the messages over. The shard that has the peer draws the indices of later sessions. It alone
//! knows when a session has ended; messages that are handed over to it later are dropped there.

use std::fmt;
use std::time::{Duration, Instant};

use crate::initiations::Cause;
use crate::ip::IpHeader;
use crate::key::PublicKey;
use crate::moved_index::MovedIndex;
use crate::peer::Peer;
use crate::peer_id::PeerId;
use crate::peer_index::Route;
use crate::session::REJECT_AFTER_TIME;
use crate::tunnel::Tunnel;

/// Time after which no session with an index from before the move can be alive: that of an initiation that is
/// answered at the end of its attempt, and the session after it.
const FORGET_AFTER: Duration = Duration::from_secs(90 + REJECT_AFTER_TIME.as_secs());

/// A peer on its way to another shard.
pub struct MovedPeer {
    peer: Box<Peer>,
    /// The routes of its sessions, by the index on the wire.
    routes: Vec<(u32, u32)>,
}

impl MovedPeer {
    /// Returns the public key of the peer.
    pub fn public_key(&self) -> PublicKey {
        self.peer.public_key
    }

    /// Returns the receiver indices that messages for its sessions and handshakes carry.
    pub fn receiver_indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.routes.iter().map(|(wire, _)| *wire)
    }
}

impl fmt::Debug for MovedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovedPeer").field("public_key", &self.peer.public_key).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Takes a peer out, for shard `to` of the interface: it is a foreign peer here from now on. `None` if
    /// this shard has no such peer, or `to` is this shard or none of the interface.
    ///
    /// What was sealed for the peer has to be sent, and what was opened written, before the other shard goes
    /// on: otherwise it overtakes.
    pub fn take_peer(&mut self, key: &PublicKey, to: u16, now: Instant) -> Option<MovedPeer> {
        let id = self.by_key.get(key).copied()?;
        if to == self.shard().number() || to >= self.shard().count() {
            return None;
        }
        let mut peer = self.peers.get_mut(id.place())?.take()?;
        if let Some(at) = peer.timers.scheduled.take() {
            self.schedule.remove(&(at, id));
        }
        if std::mem::take(&mut peer.is_ready) {
            self.ready.retain(|ready| *ready != id);
        }
        peer.staging.for_each(|staged| self.count_unstaged(staged));
        let routes: Vec<_> = [Some(&peer.session), peer.previous.as_deref()]
            .into_iter()
            .flatten()
            .flat_map(|s| s.routes())
            .collect();
        let until = now + FORGET_AFTER;
        self.moved.extend(routes.iter().map(|(index, _)| MovedIndex { until, peer: id, index: *index }));
        self.foreign_in_place_of(id, &peer, to);
        Some(MovedPeer { peer, routes })
    }

    /// Reports whether a peer belongs to this shard.
    pub fn has_peer(&self, key: &PublicKey) -> bool {
        self.by_key.get(key).is_some_and(|id| self.peers.get(id.place()).is_some_and(Option::is_some))
    }

    /// Makes a foreign peer that another shard has taken out a peer of this shard. If it had a session, a
    /// handshake starts as soon as one may be sent: the next session has an index of this shard.
    pub fn adopt_peer(&mut self, moved: MovedPeer, now: Instant) {
        let MovedPeer { mut peer, routes } = moved;
        let id = self.place_of(peer.public_key);
        let foreign = self.foreign.take(id);
        let known = foreign.and_then(|foreign| foreign.address);
        self.endpoints.replace(known, peer.endpoint.map(|endpoint| endpoint.address.ip()));
        peer.prefixes = foreign.map_or(0, |foreign| foreign.prefixes);
        self.forget_moved_indices(id);
        for (index, local) in &routes {
            self.by_index.insert(*index, Route { peer: id, local: *local });
        }
        // A packet may come from a peer, which has another place here.
        peer.staging.for_each(|staged| {
            let header = staged.packet().and_then(|packet| IpHeader::parse(packet.bytes()));
            staged.cause = header.map_or(Cause::Local, |header| self.cause_of(&header));
            self.count_staged_here(staged);
        });
        peer.cause = Cause::Renewal;
        if std::mem::take(&mut peer.awaits_initiation) {
            peer.timers.handshake = Some(now);
        }
        let can_seal = peer.in_use(now).can_seal(now);
        self.peers[id.place()] = Some(peer);
        if can_seal {
            self.make_ready(id);
        }
        if !routes.is_empty() {
            self.want_handshake(id, now, false, Cause::Renewal);
        }
        self.reschedule(id);
    }

    /// Records that a foreign peer moved from its shard to another one, which is not this shard.
    pub fn foreign_peer_moved(&mut self, key: &PublicKey, to: u16) {
        if let Some(id) = self.by_key.get(key).copied()
            && let Some(peer) = self.foreign.get_mut(id)
        {
            peer.shard = to;
        }
    }

    /// Returns the peer of this shard that a data message is for, and its receiver index.
    pub fn receiver_of_data(&self, datagram: &[u8]) -> Option<(PublicKey, u32)> {
        let index = u32::from_le_bytes(*datagram.get(4..)?.first_chunk()?);
        let peer = self.peers.get(self.by_index.route(index)?.peer.place())?.as_deref()?;
        Self::is_data(datagram).then_some((peer.public_key, index))
    }

    /// Forgets the routes of sessions that a peer had when it moved away.
    pub(crate) fn forget_moved_indices(&mut self, id: PeerId) {
        self.forget_moved_indices_if(|moved| moved.peer == id);
    }

    /// Forgets indices that no message carries any more.
    pub(crate) fn expire_moved_indices(&mut self, now: Instant) {
        self.forget_moved_indices_if(|moved| moved.until <= now);
    }

    fn forget_moved_indices_if(&mut self, is_over: impl Fn(&MovedIndex) -> bool) {
        for moved in self.moved.extract_if(.., |moved| is_over(moved)) {
            if self.by_index.route(moved.index).is_some_and(|route| route.peer == moved.peer) {
                self.by_index.remove(moved.index);
            }
        }
    }
}
