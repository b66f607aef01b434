//! Inbound: finds the peer of a datagram by receiver index, opens and checks the datagram, and returns the
//! plaintext for the TUN; answers handshake messages.
//!
//! Before: the event loop took the datagram from a receive buffer. After: the event loop stages the plaintext
//! with the TUN.

use std::time::{Duration, Instant};

use crate::budget::Work;
use crate::control_queue::{ControlQueue, Pushed};
use crate::drop_reason::DropReason;
use crate::ecn;
use crate::endpoints::Endpoint;
use crate::event::Event;
use crate::gate::Refused;
use crate::initiations::Cause;
use crate::ip::IpHeader;
use crate::packet::{PlainSlab, Plaintext};
use crate::path_limit::PathLimit;
use crate::peer_id::PeerId;
use crate::peer_index::Route;
use crate::peer_timers::{KEEPALIVE_TIMEOUT, REKEY_TIMEOUT};
use crate::session::{Content, DATA_OVERHEAD, REJECT_AFTER_TIME, SessionContext};
use crate::shard::Shard;
use crate::transmit::{MAX_CONTROL_MESSAGE, RecvMeta};
use crate::tunnel::Tunnel;

/// An initiator begins a new handshake when it receives on a session this old (whitepaper, section 6.2).
const REKEY_ON_RECEIVE: Duration =
    Duration::from_secs(REJECT_AFTER_TIME.as_secs() - KEEPALIVE_TIMEOUT.as_secs() - REKEY_TIMEOUT.as_secs());

/// Minimum time between two responses to the same peer: 50 a second, as in WireGuard for Linux.
const INITIATION_INTERVAL: Duration = Duration::from_millis(20);

const INITIATION: (u8, usize) = (1, 148);
const RESPONSE: (u8, usize) = (2, 92);
const COOKIE_REPLY: (u8, usize) = (3, 64);
const DATA: u8 = 4;

/// What [`Tunnel::handle_datagram`] did with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// The datagram carried an inner packet, which is in the plain slab.
    Packet(Plaintext),
    /// The datagram carried no packet, and is done with.
    Consumed,
    /// The datagram is for a peer of the shard with this number: hand it over, to
    /// [`Tunnel::handle_handed_over`], or data to [`Tunnel::accept_handed_over`].
    Elsewhere(u16),
}

/// How a datagram got to this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    Received,
    /// Another shard received it, and admitted it if it is an initiation.
    HandedOver,
}

impl Tunnel {
    /// Handles one datagram from the network. `plain` must have room for as many bytes as the datagram has.
    /// [`Inbound::Packet`] is a range of `plain`; answers and handshake messages go to `control`. `datagram`
    /// is modified during the call, and restored before this returns.
    ///
    /// # Errors
    /// The datagram was dropped, and is counted under the reason that is returned.
    pub fn handle_datagram(
        &mut self,
        meta: &RecvMeta,
        datagram: &mut [u8],
        now: Instant,
        plain: &mut PlainSlab,
        control: &mut ControlQueue,
    ) -> Result<Inbound, DropReason> {
        let result = if Self::is_data(datagram) {
            self.data(meta, datagram, now, plain)
        } else {
            self.handle_control(meta, datagram, now, control, Arrival::Received)
        };
        self.counted(result)
    }

    /// Handles a handshake message or cookie reply that another shard received and handed over, as
    /// [`Self::handle_datagram`] does. An initiation is answered without asking the gate: it was admitted
    /// where it was received. If the peer has moved on to another shard, the message is dropped: two shards
    /// that learn of it one after the other would hand it to each other.
    ///
    /// # Errors
    /// The datagram was dropped, and is counted under the reason that is returned.
    pub fn handle_handed_over(
        &mut self,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
        control: &mut ControlQueue,
    ) -> Result<(), DropReason> {
        let result = match self.handle_control(meta, datagram, now, control, Arrival::HandedOver) {
            Ok(Inbound::Elsewhere(_)) => Err(DropReason::UnexpectedHandshake),
            other => other.map(drop),
        };
        self.counted(result)
    }

    /// Accepts data that another shard handed over. It is then passed to [`Self::handle_datagram`], like data
    /// that was received here. Returns true if it is of a session from before its peer moved here: then it
    /// comes before what was received here, and its receiver index is replaced.
    ///
    /// # Errors
    /// The datagram was dropped, and is counted under the reason that is returned. It must not be passed on:
    /// it would be handed back, and go round between the shards without end.
    pub fn accept_handed_over(&mut self, datagram: &mut [u8]) -> Result<bool, DropReason> {
        let is_packet = datagram.len() > DATA_OVERHEAD;
        let result = match datagram.get_mut(4..).and_then(<[u8]>::first_chunk_mut) {
            Some(bytes) => {
                let index = u32::from_le_bytes(*bytes);
                let is_known = self.by_index.route(index).is_some();
                let renamed = if is_known { Ok(index) } else { self.renamed(index, is_packet) };
                renamed.map(|index| *bytes = index.to_le_bytes()).map(|()| !is_known)
            }
            None => Err(DropReason::MalformedDatagram),
        };
        self.counted(result)
    }

    #[inline(always)]
    fn counted<T>(&mut self, result: Result<T, DropReason>) -> Result<T, DropReason> {
        if let Err(reason) = result {
            self.drops.add(reason, 1);
        }
        result
    }

    /// Reports whether a datagram carries data and so needs room for its plaintext. Every other message is
    /// short and never waits for the TUN.
    pub fn is_data(datagram: &[u8]) -> bool {
        datagram.len() >= DATA_OVERHEAD && datagram.starts_with(&[DATA, 0, 0, 0])
    }

    // Apart from `handle_control`, it needs eight instructions less a packet.
    #[inline(never)]
    fn data(
        &mut self,
        meta: &RecvMeta,
        datagram: &mut [u8],
        now: Instant,
        plain: &mut PlainSlab,
    ) -> Result<Inbound, DropReason> {
        let index = index_at(datagram, 4).ok_or(DropReason::UnknownReceiverIndex)?;
        let Some(Route { peer: id, local }) = self.by_index.route(index) else {
            let shard = self.by_index.other_shard_of(index).ok_or(DropReason::UnknownReceiverIndex)?;
            return Ok(Inbound::Elsewhere(shard));
        };
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else {
            // The peer moved to another shard with this session.
            return self.foreign.shard_of(id).map(Inbound::Elsewhere).ok_or(DropReason::UnknownReceiverIndex);
        };
        let spare = plain.spare_mut();
        if spare.len() < datagram.len() {
            return Err(DropReason::TruncatedDatagram);
        }
        let opened = peer.opening(local).open(local, datagram, now, spare)?;
        peer.received_bytes += datagram.len() as u64;
        peer.arrivals.record(opened.advance);
        peer.timers.received(now);
        if opened.content != Content::Keepalive {
            peer.timers.data_received(now);
        }
        let has_moved = peer.endpoint != Some(Endpoint { address: meta.source, source: meta.local });
        let wants_rekey = peer.in_use(now).is_initiator_older_than(REKEY_ON_RECEIVE, now);
        let is_limited = peer.limits.is_some();
        if opened.confirmed {
            let another_in_flight = peer.session.is_initiating();
            self.session_established(id, now, another_in_flight);
            self.reschedule(id);
        }
        if has_moved {
            self.heard_from(id, meta, now);
        }
        if wants_rekey {
            self.want_handshake(id, now, false, Cause::Renewal);
        }
        self.reschedule_after_data(id);
        let len = match opened.content {
            Content::Packet(len) => len,
            Content::Keepalive => {
                self.stats.keepalives_received += 1;
                return Ok(Inbound::Consumed);
            }
            Content::Malformed => return Err(DropReason::MalformedPlaintext),
        };

        let packet = &mut plain.spare_mut()[..len];
        let header = IpHeader::parse(packet).ok_or(DropReason::MalformedPlaintext)?;
        if self.allowed_ips.peer_of(header.source) != Some(id) {
            return Err(DropReason::SourceNotAllowed);
        }
        if !ecn::merge(meta.ecn, packet) {
            return Err(DropReason::CongestionNotEct);
        }
        if is_limited && !self.may_come_from(id, len, now) {
            return Err(DropReason::OverRateFromPeer);
        }
        let len = u16::try_from(len).map_err(|_| DropReason::MalformedPlaintext)?;
        self.stats.opened += 1;
        Ok(Inbound::Packet(plain.commit(len)))
    }

    /// Reports whether the rate limit for packets from the peer admits a packet of `bytes` bytes, and counts
    /// the packet if not.
    fn may_come_from(&mut self, id: PeerId, bytes: usize, now: Instant) -> bool {
        let limits = self.peer_mut(id).and_then(|peer| peer.limits.as_deref_mut());
        let Some(limit) = limits.and_then(|limits| limits.from_peer.as_mut()) else { return true };
        let admitted = limit.admits(bytes, now);
        limit.dropped += u64::from(!admitted);
        admitted
    }

    #[inline(never)]
    fn handle_control(
        &mut self,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
        control: &mut ControlQueue,
        arrival: Arrival,
    ) -> Result<Inbound, DropReason> {
        let shape = (*datagram.first().ok_or(DropReason::MalformedDatagram)?, datagram.len());
        if datagram.get(1..4) != Some(&[0, 0, 0]) {
            return Err(DropReason::MalformedDatagram);
        }
        match shape {
            INITIATION => self.initiation(meta, datagram, now, control, arrival),
            RESPONSE => match self.other_shard_at(datagram, 8) {
                None => self.response(meta, datagram, now, control).map(|()| Inbound::Consumed),
                Some(shard) => Ok(Inbound::Elsewhere(shard)),
            },
            COOKIE_REPLY => match self.other_shard_at(datagram, 4) {
                None => self.cookie_reply(datagram, now).map(|()| Inbound::Consumed),
                Some(shard) => Ok(Inbound::Elsewhere(shard)),
            },
            _ => Err(DropReason::MalformedDatagram),
        }
    }

    /// Returns the shard that has the peer of the index at offset `at` of a message, if it is another shard.
    /// The message has cost nothing of the budget yet.
    fn other_shard_at(&self, datagram: &[u8], at: usize) -> Option<u16> {
        if self.shard() == Shard::ONLY {
            return None;
        }
        let index = index_at(datagram, at)?;
        match self.by_index.route(index) {
            Some(Route { peer, .. }) => self.foreign.shard_of(peer),
            None => self.by_index.other_shard_of(index),
        }
    }

    /// Checks that the budget has time for a handshake message, and `control` has room for an answer.
    fn begin_handshake(&mut self, now: Instant, control: &ControlQueue) -> Result<(), DropReason> {
        self.gate.receive(now)?;
        check_room(control)
    }

    /// Records that a handshake message of the peer was authentic.
    fn handshake_received(&mut self, id: PeerId, meta: &RecvMeta, datagram: &[u8], now: Instant) {
        let Some(peer) = self.peer_mut(id) else { return };
        peer.received_bytes += datagram.len() as u64;
        peer.timers.received(now);
        self.heard_from(id, meta, now);
    }

    fn initiation(
        &mut self,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
        control: &mut ControlQueue,
        arrival: Arrival,
    ) -> Result<Inbound, DropReason> {
        match arrival {
            Arrival::Received => {
                self.begin_handshake(now, control)?;
                self.admit(meta, datagram, false, now, control)?;
            }
            Arrival::HandedOver => {
                self.gate.budget.grow(now);
                check_room(control)?;
            }
        }
        // The shard that received it spent this as well, to find out whose peer the sender is.
        self.gate.budget.spend(Work::Identify);
        let key = self.identity.identify(datagram)?;
        let id = self.by_key.get(&key).copied().ok_or(DropReason::UnknownPeer)?;
        if let Some(shard) = self.foreign.shard_of(id) {
            return Ok(Inbound::Elsewhere(shard));
        }
        let mut answer = [0; MAX_CONTROL_MESSAGE];
        let len = self.answer(id, datagram, now, &mut answer)?;
        self.handshake_received(id, meta, datagram, now);
        if let Some(peer) = self.peer_mut(id) {
            peer.timers.handshake_answered(now);
        }
        self.send_control(id, now, control, &answer[..len]);
        self.reschedule(id);
        Ok(Inbound::Consumed)
    }

    fn admit(
        &mut self,
        meta: &RecvMeta,
        datagram: &[u8],
        is_suspect: bool,
        now: Instant,
        control: &mut ControlQueue,
    ) -> Result<(), DropReason> {
        let peers = self.by_key.len();
        match self.gate.admit(meta.source, datagram, &self.endpoints, peers, is_suspect, now) {
            Ok(()) => Ok(()),
            Err(Refused::Drop(reason)) => Err(reason),
            Err(Refused::Cookie(reply)) => {
                if control.push(None, meta.source, meta.local, &reply, now) == Pushed::Added {
                    self.stats.cookies_sent += 1;
                }
                Err(DropReason::CookieRequired)
            }
        }
    }

    /// Writes the response to an initiation of a peer to `out`, and returns its length.
    fn answer(
        &mut self,
        id: PeerId,
        datagram: &[u8],
        now: Instant,
        out: &mut [u8; MAX_CONTROL_MESSAGE],
    ) -> Result<usize, DropReason> {
        let Self { peers, by_index: indices, identity, gate, .. } = self;
        let peer = peers.get_mut(id.place()).and_then(Option::as_deref_mut).ok_or(DropReason::UnknownPeer)?;
        if peer.answered_at.is_some_and(|last| now.duration_since(last) < INITIATION_INTERVAL) {
            return Err(DropReason::HandshakeRateLimited);
        }
        let was_built = peer.session.is_built();
        if !was_built {
            gate.budget.spend(Work::Build);
        }
        let mut context = SessionContext { identity, indices, peer: id, key: peer.public_key };
        let result = peer.session.answer(&mut context, datagram, now, out);
        gate.budget.spend(if result.is_ok() { Work::Answer } else { Work::Identify });
        match result {
            Ok(len) => {
                peer.answered_at = Some(now);
                Ok(len)
            }
            Err(reason) => {
                if !was_built {
                    peer.session.drop_unless_used(indices);
                }
                Err(reason)
            }
        }
    }

    fn response(
        &mut self,
        meta: &RecvMeta,
        datagram: &[u8],
        now: Instant,
        control: &mut ControlQueue,
    ) -> Result<(), DropReason> {
        self.begin_handshake(now, control)?;
        let Route { peer: id, local } = self.route_at(datagram, 8)?;
        // The random index proves that the sender saw our initiation. A cookie is needed only once forged
        // responses have arrived for that initiation.
        if self.peer_mut(id).is_some_and(|peer| peer.session.is_attacked(local)) {
            self.admit(meta, datagram, true, now, control)?;
        } else {
            self.gate.check_mac1(datagram)?;
        }
        let Self { peers, by_index: indices, identity, gate, .. } = self;
        let peer = peers.get_mut(id.place()).and_then(Option::as_deref_mut).ok_or(DropReason::UnknownPeer)?;
        if !peer.session.has_index(local) {
            // The response answers an initiation from before the preshared key changed.
            return Err(DropReason::UnexpectedHandshake);
        }
        gate.budget.spend(Work::Conclude);
        let mut answer = [0; MAX_CONTROL_MESSAGE];
        let mut context = SessionContext { identity, indices, peer: id, key: peer.public_key };
        let (len, another_in_flight) =
            peer.session.conclude(&mut context, local, datagram, now, &mut answer)?;
        self.handshake_received(id, meta, datagram, now);
        self.session_established(id, now, another_in_flight);
        self.send_control(id, now, control, &answer[..len]);
        self.reschedule(id);
        Ok(())
    }

    fn cookie_reply(&mut self, datagram: &[u8], now: Instant) -> Result<(), DropReason> {
        self.gate.receive(now)?;
        let Route { peer: id, local } = self.route_at(datagram, 4)?;
        let peer = self.peer_mut(id).ok_or(DropReason::UnknownReceiverIndex)?;
        let key = peer.public_key;
        peer.opening(local).cookie_reply(datagram, &key, now)
    }

    /// Records that a session can be used in both directions from now on.
    fn session_established(&mut self, id: PeerId, now: Instant, another_in_flight: bool) {
        let Some(peer) = self.peer_mut(id) else { return };
        peer.last_handshake = Some(now);
        peer.timers.session_established(now, another_in_flight);
        let event = Event::HandshakeComplete { peer: peer.public_key };
        self.stats.handshakes += 1;
        self.push_event(event);
        self.make_ready(id);
    }

    /// Updates the endpoint of the peer from an authenticated message (roaming; whitepaper, section 6.5): its
    /// source, and the local address that the peer sends to.
    fn heard_from(&mut self, id: PeerId, meta: &RecvMeta, now: Instant) {
        let endpoint = Endpoint { address: meta.source, source: self.source_for(id, meta.local, now) };
        let Some(peer) = self.peer_mut(id) else { return };
        if peer.endpoint == Some(endpoint) {
            return;
        }
        let moved = peer.endpoint.is_none_or(|old| old.address != meta.source);
        if moved {
            peer.path_limit = PathLimit::default();
            let event = Event::EndpointChanged { peer: peer.public_key, endpoint: meta.source };
            self.push_event(event);
        }
        self.set_peer_endpoint(id, Some(endpoint));
    }

    fn route_at(&self, datagram: &[u8], at: usize) -> Result<Route, DropReason> {
        index_at(datagram, at)
            .and_then(|index| self.by_index.route(index))
            .ok_or(DropReason::UnknownReceiverIndex)
    }
}

/// Checks that there is room for an answer.
fn check_room(control: &ControlQueue) -> Result<(), DropReason> {
    if control.has_room() { Ok(()) } else { Err(DropReason::ControlQueueFull) }
}

/// Reads the index at offset `at` of a message.
#[inline]
fn index_at(datagram: &[u8], at: usize) -> Option<u32> {
    let bytes = datagram.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

// On the mock clock, boringtun's state is kept.
#[cfg(test)]
#[cfg(not(feature = "mock-instant"))]
mod tests {
    use super::*;
    use crate::mac;
    use crate::test_pair::{hear, initiation, pair};

    #[test]
    fn a_forged_initiation_does_not_end_a_handshake_under_way() {
        let ([mut one, mut other], now) = (pair(), Instant::now());
        // Who knows both public keys can make an initiation that is not authentic from the timestamp on.
        let mut forged = initiation(&mut other, now);
        forged[100] ^= 1;
        mac::stamp(&mut forged, &one.identity.public_key, None);
        let work = |tunnel: &Tunnel| tunnel.handshake_load(now).work;
        assert_eq!(hear(&mut one, &forged, now), Err(DropReason::InvalidTag));
        assert!(!one.peers[0].as_ref().unwrap().session.is_built(), "nothing is left of it");
        let with_build = work(&one);

        let message = initiation(&mut one, now);
        let before = work(&one);
        assert_eq!(hear(&mut one, &forged, now), Err(DropReason::InvalidTag));
        assert!(work(&one) - before < with_build, "there was nothing to build");
        let response = hear(&mut other, &message, now).unwrap();
        assert_eq!(hear(&mut one, &response, now).map(|answer| answer.len()), Ok(32));
    }
}
