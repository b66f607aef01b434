//! WireGuard's timers (whitepaper, section 6), each a deadline of a peer.
//!
//! Moving a deadline later costs nothing: the peer stays in the schedule under the earlier time, wakes once
//! without work, and is scheduled again for the right time. An idle peer has no deadline and causes no
//! wake-ups.

use std::time::{Duration, Instant};

use crate::budget::Work;
use crate::control_queue::{ControlQueue, Pushed};
use crate::drop_reason::DropReason;
use crate::event::Event;
use crate::initiations::Cause;
use crate::peer_id::PeerId;
use crate::peer_timers::{REKEY_TIMEOUT, WakeReason};
use crate::session::SessionContext;
use crate::transmit::MAX_CONTROL_MESSAGE;
use crate::tunnel::{Progress, Tunnel};

/// How long handshakes are attempted for staged packets.
const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// Number of unanswered initiations before the first [`Event::HandshakeUnanswered`], and between two later
/// events.
const UNANSWERED: (u32, u32) = (3, 6);
/// Free slots of the control queue that are required before one peer's timers are handled. They send at most
/// a keepalive; initiations are queued, and check for a slot when they are sent.
const SLOTS_PER_TIMEOUT: usize = 2;

/// Maximum number of initiations that one call sends: 0.2 to 0.3 ms each, and a turn has two calls.
const INITIATIONS_PER_CALL: usize = 2;
/// Maximum number of peers whose timers one call handles: about a microsecond each, without initiations.
const PEERS_PER_CALL: usize = 256;

fn take_due(deadline: &mut Option<Instant>, now: Instant) -> bool {
    deadline.take_if(|at| *at <= now).is_some()
}

impl Tunnel {
    /// Returns when [`Self::handle_timeout`] has to be called next, and why. The time may be early, never
    /// late.
    pub fn poll_timeout(&self) -> Option<(Instant, WakeReason)> {
        let timer = self.schedule.first().and_then(|(at, id)| {
            let peer = self.peers.get(id.place())?.as_deref()?;
            let reason = peer.timers.next().map_or(WakeReason::SessionExpiry, |(_, reason)| reason);
            Some((*at, reason))
        });
        if self.initiations.is_empty() {
            return timer;
        }
        let initiation = self.gate.budget.next_initiation().map(|at| (at, WakeReason::Handshake));
        [timer, initiation].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Handles due timers and initiations, as much as one turn has time for. Stops when `out` is full or the
    /// limit of one call is reached, and continues from there when it is called again.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut ControlQueue) -> Progress {
        self.gate.budget.grow(now);
        if !self.moved.is_empty() || !self.renamed.is_empty() {
            self.expire_moved_indices(now);
        }
        let mut peers = PEERS_PER_CALL;
        while let Some((at, id)) = self.schedule.first().copied() {
            if at > now {
                break;
            }
            if peers == 0 || !out.has_room_for(SLOTS_PER_TIMEOUT) {
                return Progress::Blocked;
            }
            peers -= 1;
            self.schedule.pop_first();
            if let Some(peer) = self.peer_mut(id) {
                peer.timers.scheduled = None;
                self.peer_timeout(id, now, out);
                self.reschedule(id);
            }
        }
        self.send_initiations(now, out)
    }

    /// Sends initiations that are due, within the budget and the limit of one call.
    fn send_initiations(&mut self, now: Instant, out: &mut ControlQueue) -> Progress {
        let mut sent = 0;
        while !self.initiations.is_empty() && self.gate.budget.has_initiation() {
            if sent == INITIATIONS_PER_CALL || !out.has_room() {
                return Progress::Blocked;
            }
            let Some((cause, id)) = self.initiations.pop() else { break };
            let Some(peer) = self.peer_mut(id) else { continue };
            // The peer was queued under another cause, too, and its initiation was sent for that.
            if !peer.awaits_initiation || peer.cause != cause {
                continue;
            }
            peer.awaits_initiation = false;
            sent += usize::from(self.initiate(id, now, out));
            self.reschedule(id);
        }
        Progress::Done
    }

    /// Queues an initiation to the peer, which is sent once the budget allows it.
    fn queue_initiation(&mut self, id: PeerId) {
        let Some(peer) = self.peer_mut(id) else { return };
        if !peer.awaits_initiation {
            peer.awaits_initiation = true;
            let cause = peer.cause;
            self.initiations.push(cause, id);
        }
    }

    fn peer_timeout(&mut self, id: PeerId, now: Instant, out: &mut ControlQueue) {
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return };
        let timers = &mut peer.timers;
        let expired = take_due(&mut timers.session_expiry, now);
        let silent = take_due(&mut timers.silence, now);
        let handshake = take_due(&mut timers.handshake, now);
        let keepalive = take_due(&mut timers.keepalive, now);
        let persistent = take_due(&mut timers.persistent, now);
        if expired {
            let indices = &mut self.by_index;
            peer.session.refresh(now, indices);
            if !timers.is_trying() {
                peer.session.drop_unless_used(indices);
            }
            let mut wipe_at = peer.session.wipe_at(peer.last_handshake, now);
            if let Some(previous) = &mut peer.previous {
                previous.refresh(now, indices);
                match previous.wipe_at(None, now) {
                    Some(at) => wipe_at = Some(wipe_at.map_or(at, |other| other.min(at))),
                    None => {
                        previous.clear(indices);
                        peer.previous = None;
                    }
                }
            }
            timers.session_expiry = wipe_at;
        }
        if silent {
            // The path may have changed without notice: the routing table chooses the source again.
            self.forget_source(id);
            self.want_handshake(id, now, true, Cause::Renewal);
        }
        if handshake {
            self.queue_initiation(id);
        }
        if keepalive || persistent {
            self.send_keepalive(id, now, out);
        }
        if persistent && let Some(peer) = self.peer_mut(id) {
            peer.timers.passed(now);
        }
        // A handshake that the timers above requested is due in the same turn.
        if self.peer_mut(id).is_some_and(|peer| take_due(&mut peer.timers.handshake, now)) {
            self.queue_initiation(id);
        }
    }

    /// Requests a handshake as soon as an initiation may be sent. `fresh`: there is something new to send, so
    /// that the time limit of the attempt starts again (whitepaper, section 6.4).
    pub(crate) fn want_handshake(&mut self, id: PeerId, now: Instant, fresh: bool, cause: Cause) {
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return };
        let is_trying = peer.timers.is_trying();
        if !is_trying || self.initiations.is_sooner(cause, peer.cause) {
            peer.cause = cause;
            if peer.awaits_initiation {
                self.initiations.push(cause, id);
            }
        }
        let timers = &mut peer.timers;
        if fresh || !is_trying {
            timers.trying_since = Some(now);
        }
        if timers.handshake.is_none() && !peer.awaits_initiation {
            let earliest = timers.last_handshake_message.map_or(now, |last| last + REKEY_TIMEOUT);
            timers.handshake = Some(earliest.max(now));
        }
        self.reschedule(id);
    }

    /// Sends an initiation, or gives up the attempt. Returns false if no initiation was sent.
    fn initiate(&mut self, id: PeerId, now: Instant, out: &mut ControlQueue) -> bool {
        let Self { peers, by_index: indices, identity, gate, .. } = self;
        let Some(peer) = peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return false };
        let timers = &mut peer.timers;
        if timers.trying_since.is_some_and(|since| now.duration_since(since) >= REKEY_ATTEMPT_TIME) {
            timers.trying_since = None;
            timers.unanswered = 0;
            peer.session.drop_unless_used(indices);
            out.remove_initiation(id);
            let event = Event::HandshakeFailed { peer: peer.public_key };
            self.push_event(event);
            self.stats.handshakes_timed_out += 1;
            self.drop_staged(id, DropReason::HandshakeTimeout);
            return false;
        }
        if peer.endpoint.is_none() {
            timers.trying_since = None;
            peer.session.drop_unless_used(indices);
            out.remove_initiation(id);
            return false;
        }
        timers.trying_since.get_or_insert(now);
        let mut message = [0; MAX_CONTROL_MESSAGE];
        if !peer.session.is_built() {
            gate.budget.spend(Work::Build);
        }
        gate.budget.spend(Work::Initiate);
        let mut context = SessionContext { identity, indices, peer: id, key: peer.public_key };
        let Some(len) = peer.session.initiate(&mut context, now, &mut message) else { return false };
        let initiations = timers.unanswered;
        timers.unanswered = initiations.saturating_add(1);
        let event = Event::HandshakeUnanswered { peer: peer.public_key, initiations };
        self.send_control(id, now, out, &message[..len]);
        let (first, every) = UNANSWERED;
        if initiations.checked_sub(first).is_some_and(|more| more.is_multiple_of(every)) {
            self.push_event(event);
        }
        true
    }

    fn send_keepalive(&mut self, id: PeerId, now: Instant, out: &mut ControlQueue) {
        let Some(peer) = self.peer_mut(id) else { return };
        if peer.endpoint.is_none() {
            return;
        }
        let session = peer.in_use(now);
        let Some(wants_rekey) = session.wants_rekey(now) else {
            self.want_handshake(id, now, true, Cause::Keepalive);
            return;
        };
        let mut message = [0; MAX_CONTROL_MESSAGE];
        if let Some(len) = session.seal(&[], &mut message) {
            self.send_control(id, now, out, &message[..len]);
            if wants_rekey {
                self.want_handshake(id, now, false, Cause::Renewal);
            }
        }
    }

    /// Sends a handshake message or keepalive to the endpoint of the peer.
    pub(crate) fn send_control(&mut self, id: PeerId, now: Instant, out: &mut ControlQueue, message: &[u8]) {
        let Some(peer) = self.peer_mut(id) else { return };
        let Some(endpoint) = peer.endpoint else { return };
        let timers = &mut peer.timers;
        match message.first() {
            Some(1) => {
                timers.handshake_message_sent(now);
                let jitter = timers.jitter();
                timers.handshake = Some(now + REKEY_TIMEOUT + jitter);
            }
            _ => {
                timers.keepalive = None;
                timers.passed(now);
            }
        }
        let pushed = out.push(Some(id), endpoint.address, endpoint.source, message, now);
        if pushed == Pushed::InPlaceOfOlder {
            return;
        }
        peer.sent_bytes += message.len() as u64;
        if pushed == Pushed::NoRoom {
            self.drops.add(DropReason::ControlQueueFull, 1);
            return;
        }
        match message.first() {
            Some(1) => self.stats.initiations_sent += 1,
            Some(2) => self.stats.responses_sent += 1,
            _ => {}
        }
    }

    /// Does what [`Self::reschedule`] does, at less cost, where only [`Timers::data_sent`],
    /// [`Timers::received`] and [`Timers::data_received`] moved deadlines.
    #[inline]
    pub(crate) fn reschedule_after_data(&mut self, id: PeerId) {
        if self.peers.get(id.place()).and_then(Option::as_deref).is_some_and(|peer| peer.timers.is_early) {
            self.reschedule(id);
        }
    }

    /// Puts the peer into the schedule at its next deadline, if that is earlier than the peer's entry.
    pub(crate) fn reschedule(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return };
        peer.timers.is_early = false;
        let Some((at, _)) = peer.timers.next() else { return };
        if peer.timers.scheduled.is_some_and(|scheduled| scheduled <= at) {
            return;
        }
        if let Some(scheduled) = peer.timers.scheduled.replace(at) {
            self.schedule.remove(&(scheduled, id));
        }
        self.schedule.insert((at, id));
    }
}

// On the mock clock, boringtun's state is kept.
#[cfg(test)]
#[cfg(not(feature = "mock-instant"))]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::session::REJECT_AFTER_TIME;
    use crate::test_pair::{hear, initiation, pair};

    #[test]
    fn the_end_of_an_old_session_does_not_end_a_handshake_under_way() {
        let ([mut one, mut other], now) = (pair(), Instant::now());
        let response = hear(&mut other, &initiation(&mut one, now), now).unwrap();
        hear(&mut one, &response, now).unwrap();
        let peer = one.peers().next().unwrap().public_key;
        assert!(one.apply(Change::EndSession(peer), now));

        // The keys of the session would be wiped a second after it could not be used any more.
        let later = now + REJECT_AFTER_TIME;
        let message = initiation(&mut one, later);
        let expiry = later + Duration::from_secs(1);
        let _ = one.handle_timeout(expiry, &mut ControlQueue::new(4));
        let response = hear(&mut other, &message, expiry).unwrap();
        assert_eq!(hear(&mut one, &response, expiry).map(|answer| answer.len()), Ok(32));
    }
}
