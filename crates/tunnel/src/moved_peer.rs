//! Moves a peer from one shard of the interface to another, as a restart carries the state of a peer over:
//! its sessions with their counters and replay windows, timers, limits and endpoint leave one tunnel and
//! enter another, with the messages that are sealed and not sent. Packets that are not sealed are dropped and
//! counted ([`DropReason::PeerMoved`]), and a handshake that is not complete is left.
//!
//! The receiver indices of its sessions still name the shard that drew them, so the kernel delivers their
//! messages there. That shard keeps the routes of these indices, which lead to a foreign peer from now on,
//! and hands the messages over. The shard that has the peer draws indices for the sessions, which it writes
//! into what is handed over, and asks for a handshake: the next session needs no detour. Once a
//! message of that session was opened, those of the earlier ones are dropped: they would be out of order.

use std::fmt;
use std::time::Instant;

use crate::drop_reason::DropReason;
use crate::initiations::Cause;
use crate::key::PublicKey;
use crate::moved_index::MovedIndex;
use crate::peer::Peer;
use crate::peer_id::PeerId;
use crate::session::{REJECT_AFTER_TIME, Session};
use crate::transmit::{Batch, TransmitQueue};
use crate::tunnel::Tunnel;

/// A peer on its way to another shard.
pub struct MovedPeer {
    peer: Box<Peer>,
    /// Messages from `peer`'s sessions that no socket has taken.
    unsent: Vec<Batch>,
}

impl fmt::Debug for MovedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MovedPeer").field("public_key", &self.peer.public_key).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Takes a peer out, for shard `to` of the interface: it is a foreign peer here from now on. `None` if
    /// this shard has no such peer, if `to` is this shard or none of the interface, or if the peer still uses
    /// a session from before its last move.
    ///
    /// `out` has the messages that are sealed and not sent. What was opened for the peer has to be written
    /// before the other shard goes on: otherwise it is overtaken.
    pub fn take_peer(
        &mut self,
        key: &PublicKey,
        to: u16,
        now: Instant,
        out: &mut TransmitQueue,
    ) -> Option<MovedPeer> {
        let id = self.by_key.get(key).copied()?;
        if to == self.shard().number() || to >= self.shard().count() {
            return None;
        }
        let peer = self.peer_mut(id)?;
        if peer.sessions().any(|session| session.has_moved(now)) && !peer.is_next_session_in_use() {
            return None;
        }
        self.drop_staged(id, DropReason::PeerMoved);
        let mut peer = self.peers.get_mut(id.place())?.take()?;
        if let Some(at) = peer.timers.scheduled.take() {
            self.schedule.remove(&(at, id));
        }
        if std::mem::take(&mut peer.is_ready) {
            self.ready.retain(|ready| *ready != id);
        }
        peer.sessions_mut().for_each(|session| session.forget_initiations(&mut self.by_index));
        let until = now + REJECT_AFTER_TIME;
        let indices = peer.sessions().flat_map(Session::routes);
        self.moved.extend(indices.map(|(index, _)| MovedIndex { until, peer: id, index }));
        self.foreign_in_place_of(id, &peer, to);
        Some(MovedPeer { peer, unsent: out.take_peer(id) })
    }

    /// Adds a peer that another shard has given up. If the peer had a session, a handshake starts as soon as
    /// one may be sent, so that the next session has an index of this shard.
    pub fn adopt_peer(&mut self, moved: MovedPeer, now: Instant, out: &mut TransmitQueue) {
        let MovedPeer { mut peer, unsent } = moved;
        let id = self.place_of(peer.public_key);
        out.adopt(id, unsent);
        let foreign = self.foreign.take(id);
        let known = foreign.and_then(|foreign| foreign.address);
        self.endpoints.replace(known, peer.endpoint.map(|endpoint| endpoint.address.ip()));
        peer.prefixes = foreign.map_or(0, |foreign| foreign.prefixes);
        self.forget_moved_indices(id);
        let mut has_session = false;
        for session in peer.sessions_mut() {
            for (before, index) in session.rename(id, &mut self.by_index) {
                self.renamed.insert(before, index);
                has_session = true;
            }
        }
        peer.cause = Cause::Renewal;
        if std::mem::take(&mut peer.awaits_initiation) {
            peer.timers.handshake = Some(now);
        }
        self.peers[id.place()] = Some(peer);
        if has_session {
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

    /// Returns the index by which this shard knows a session from before its peer moved here, of which a
    /// message was handed over.
    ///
    /// # Errors
    /// The message has to be dropped: its session has ended, the peer is not here yet, or a message of a
    /// later session was opened. A keepalive has no place among packets, and is never late.
    pub(crate) fn renamed(&mut self, index: u32, is_packet: bool) -> Result<u32, DropReason> {
        let Some(index) = self.renamed.get(&index).copied() else {
            let is_ours = self.by_index.other_shard_of(index).is_none();
            return Err(if is_ours { DropReason::UnknownReceiverIndex } else { DropReason::Overload });
        };
        let route = self.by_index.route(index).ok_or(DropReason::UnknownReceiverIndex)?;
        // Or the peer has moved on.
        let is_late = self.peer_mut(route.peer).is_none_or(|peer| is_packet && peer.is_next_session_in_use());
        if is_late { Err(DropReason::Overload) } else { Ok(index) }
    }

    /// Forgets the routes of sessions that a peer had when it moved away.
    pub(crate) fn forget_moved_indices(&mut self, id: PeerId) {
        self.forget_moved_indices_if(|moved| moved.peer == id);
    }

    /// Forgets indices that no message carries any more.
    pub(crate) fn expire_moved_indices(&mut self, now: Instant) {
        self.forget_moved_indices_if(|moved| moved.until <= now);
        let Self { renamed, by_index, .. } = self;
        renamed.retain(|_, index| by_index.route(*index).is_some());
    }

    fn forget_moved_indices_if(&mut self, is_over: impl Fn(&MovedIndex) -> bool) {
        for moved in self.moved.extract_if(.., |moved| is_over(moved)) {
            if self.by_index.route(moved.index).is_some_and(|route| route.peer == moved.peer) {
                self.by_index.remove(moved.index);
            }
        }
    }
}
