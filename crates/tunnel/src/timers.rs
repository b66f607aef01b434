//! When a peer needs something: WireGuard's timers (whitepaper, section 6), each a deadline.
//!
//! A deadline that moves later costs nothing: the peer stands in the schedule under an earlier time, wakes once
//! for nothing and goes back under the right one. An idle peer has no deadline and wakes nobody.

use std::time::{Duration, Instant};

use crate::budget::Work;
use crate::drop_reason::DropReason;
use crate::event::Event;
use crate::initiations::Cause;
use crate::peer::PeerId;
use crate::session::{REJECT_AFTER_TIME, SessionContext};
use crate::transmit::{ControlQueue, MAX_CONTROL_MESSAGE};
use crate::tunnel::{Progress, Tunnel};

/// A handshake initiation is repeated after this, and never sent more often.
pub(crate) const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that received data answers within this, with a keepalive if it has nothing else.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An initiator begins a new handshake when it sends on a session this old (whitepaper, section 6.2,
/// Rekey-After-Time).
pub(crate) const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// How long handshakes are tried for what waits.
const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// Initiations without an answer after which somebody is told for the first time, and between two times after that.
const UNANSWERED: (u32, u32) = (3, 6);
/// At most this is added to a handshake's delay, so that two ends do not collide for ever.
const MAX_JITTER_MS: u32 = 334;
/// Slots of the control queue that one peer's timers may fill: an initiation and a keepalive.
const SLOTS_PER_TIMEOUT: usize = 2;

/// Initiations that one call sends: 0.2 to 0.3 ms each, and a turn has two calls.
const INITIATIONS_PER_CALL: usize = 2;
/// Peers whose timers one call looks at: about a microsecond each, without initiations.
const PEERS_PER_CALL: usize = 256;

/// Why the tunnel wants to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// To send a handshake initiation, for the first time or again.
    Handshake,
    /// To answer data with a keepalive, because nothing else was sent.
    Keepalive,
    /// To hold a NAT mapping open.
    PersistentKeepalive,
    /// To begin a handshake, because data that was sent remained without an answer.
    Silence,
    /// To wipe the keys of sessions that ended.
    SessionExpiry,
}

/// The deadlines of one peer.
#[derive(Debug)]
pub(crate) struct Timers {
    /// When to send a handshake initiation.
    handshake: Option<Instant>,
    /// Since when handshakes are being tried.
    trying_since: Option<Instant>,
    /// Initiations sent since a handshake came through, or since none was tried any more.
    unanswered: u32,
    /// When the last initiation or response was sent.
    last_handshake_message: Option<Instant>,
    keepalive: Option<Instant>,
    silence: Option<Instant>,
    persistent: Option<Instant>,
    persistent_interval: Option<Duration>,
    session_expiry: Option<Instant>,
    jitter: u32,
    /// Where the peer stands in the tunnel's schedule.
    pub(crate) scheduled: Option<Instant>,
    /// Whether a deadline is earlier than that: the peer has to be scheduled again.
    is_early: bool,
}

impl Timers {
    pub(crate) fn new(persistent_interval: Option<Duration>, seed: u32, now: Instant) -> Self {
        Self {
            handshake: None,
            trying_since: None,
            unanswered: 0,
            last_handshake_message: None,
            keepalive: None,
            silence: None,
            // The first is due at once: it brings the tunnel up.
            persistent: persistent_interval.map(|_| now),
            persistent_interval,
            session_expiry: None,
            jitter: seed | 1,
            scheduled: None,
            is_early: false,
        }
    }

    /// Another interval. One that is switched on is due at once, as in the kernel's WireGuard.
    pub(crate) fn set_persistent_interval(&mut self, interval: Option<Duration>, now: Instant) {
        let was_on = self.persistent_interval.is_some();
        if interval == self.persistent_interval {
            return;
        }
        self.persistent_interval = interval;
        self.persistent = match interval {
            Some(_) if !was_on => Some(now),
            Some(interval) => Some(self.persistent.map_or(now, |at| at.min(now + interval))),
            None => None,
        };
    }

    /// The peer can be reached for the first time: a keepalive is due as if it was switched on now.
    pub(crate) fn endpoint_found(&mut self, now: Instant) {
        self.persistent = self.persistent_interval.map(|_| now);
    }

    fn jitter(&mut self) -> Duration {
        // xorshift32: two ends have to differ, nothing more.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 17;
        self.jitter ^= self.jitter << 5;
        Duration::from_millis(u64::from(self.jitter % MAX_JITTER_MS))
    }

    /// Data was sealed for the peer.
    #[inline]
    pub(crate) fn data_sent(&mut self, now: Instant) {
        self.keepalive = None;
        if self.silence.is_none() {
            let at = now + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT + self.jitter();
            self.silence = Some(at);
            self.set(at);
        }
        self.passed(now);
    }

    /// Something authentic came from the peer.
    #[inline]
    pub(crate) fn received(&mut self, now: Instant) {
        self.silence = None;
        self.passed(now);
    }

    /// Data came from the peer.
    #[inline]
    pub(crate) fn data_received(&mut self, now: Instant) {
        if self.keepalive.is_none() {
            let at = now + KEEPALIVE_TIMEOUT;
            self.keepalive = Some(at);
            self.set(at);
        }
    }

    /// Has a keepalive sent by then, unless something else is.
    pub(crate) fn keepalive_by(&mut self, at: Instant) {
        self.keepalive = Some(self.keepalive.map_or(at, |earlier| earlier.min(at)));
        self.set(at);
    }

    /// Has a handshake begun then, unless something is received.
    pub(crate) fn answer_by(&mut self, at: Instant) {
        self.silence = Some(self.silence.map_or(at, |earlier| earlier.min(at)));
        self.set(at);
    }

    #[inline]
    fn passed(&mut self, now: Instant) {
        if let Some(interval) = self.persistent_interval {
            let at = now + interval;
            self.persistent = Some(at);
            self.set(at);
        }
    }

    /// Notes that a deadline was set: with each packet one is, and almost always there is an earlier one.
    #[inline]
    fn set(&mut self, at: Instant) {
        self.is_early |= self.scheduled.is_none_or(|scheduled| at < scheduled);
    }

    /// Whether a handshake is being tried and did not come through yet.
    pub(crate) fn is_trying(&self) -> bool {
        self.trying_since.is_some()
    }

    fn handshake_message_sent(&mut self, now: Instant) {
        self.last_handshake_message = Some(now);
        self.keepalive = None;
        self.passed(now);
    }

    pub(crate) fn handshake_answered(&mut self, now: Instant) {
        self.handshake_message_sent(now);
        self.session_began(now);
        // The peer is about to confirm: an initiation of our own can wait for that.
        if let Some(at) = self.handshake {
            self.handshake = Some(at.max(now + REKEY_TIMEOUT));
        }
    }

    fn session_began(&mut self, now: Instant) {
        let expiry = now + REJECT_AFTER_TIME + Duration::from_secs(1);
        self.session_expiry = Some(self.session_expiry.map_or(expiry, |at| at.min(expiry)));
    }

    pub(crate) fn session_established(&mut self, now: Instant, another_in_flight: bool) {
        self.session_began(now);
        self.trying_since = None;
        self.unanswered = 0;
        // boringtun gives up its sessions over an initiation that remains without an answer for 90 s, so that
        // one is repeated; but not before its answer, late as it is, can be here.
        self.handshake = another_in_flight.then_some(now + KEEPALIVE_TIMEOUT + REKEY_TIMEOUT);
    }

    fn next(&self) -> Option<(Instant, WakeReason)> {
        [
            (self.handshake, WakeReason::Handshake),
            (self.keepalive, WakeReason::Keepalive),
            (self.persistent, WakeReason::PersistentKeepalive),
            (self.silence, WakeReason::Silence),
            (self.session_expiry, WakeReason::SessionExpiry),
        ]
        .into_iter()
        .filter_map(|(at, reason)| Some((at?, reason)))
        .min_by_key(|(at, _)| *at)
    }
}

fn take_due(deadline: &mut Option<Instant>, now: Instant) -> bool {
    deadline.take_if(|at| *at <= now).is_some()
}

impl Tunnel {
    /// When [`Self::handle_timeout`] has to be called next, and what for. May be early, never late.
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

    /// Does what is due, as much as one turn has time for. Stops when `out` is full or the turn is over, and goes on where
    /// it was when it is called again.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut ControlQueue) -> Progress {
        self.gate.budget.grow(now);
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

    /// Sends initiations that are due, as far as the budget and one turn go.
    fn send_initiations(&mut self, now: Instant, out: &mut ControlQueue) -> Progress {
        let mut sent = 0;
        while !self.initiations.is_empty() && self.gate.budget.has_initiation() {
            if sent == INITIATIONS_PER_CALL || !out.has_room() {
                return Progress::Blocked;
            }
            let Some((cause, id)) = self.initiations.pop() else { break };
            let Some(peer) = self.peer_mut(id) else { continue };
            // It waited for another cause too, and had its initiation then.
            if !peer.awaits_initiation || peer.cause != cause {
                continue;
            }
            peer.awaits_initiation = false;
            sent += usize::from(self.initiate(id, now, out));
            self.reschedule(id);
        }
        Progress::Done
    }

    /// An initiation to the peer is due: it is sent when there is time for it.
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
            // The path may have changed under us: let the routing table choose again.
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
        // A handshake that the other timers asked for is due in the same turn.
        if self.peer_mut(id).is_some_and(|peer| take_due(&mut peer.timers.handshake, now)) {
            self.queue_initiation(id);
        }
    }

    /// Asks for a handshake as soon as it may be. `fresh`: there is something new to send, so the time of trying begins
    /// again (whitepaper, section 6.4).
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

    /// Sends an initiation, or gives up. False if none was sent.
    fn initiate(&mut self, id: PeerId, now: Instant, out: &mut ControlQueue) -> bool {
        let Self { peers, by_index: indices, identity, gate, .. } = self;
        let Some(peer) = peers.get_mut(id.place()).and_then(Option::as_deref_mut) else { return false };
        let timers = &mut peer.timers;
        if timers.trying_since.is_some_and(|since| now.duration_since(since) >= REKEY_ATTEMPT_TIME) {
            timers.trying_since = None;
            timers.unanswered = 0;
            peer.session.drop_unless_used(indices);
            let event = Event::HandshakeFailed { peer: peer.public_key };
            self.push_event(event);
            self.stats.handshakes_timed_out += 1;
            self.drop_staged(id, DropReason::HandshakeTimeout);
            return false;
        }
        if peer.endpoint.is_none() {
            timers.trying_since = None;
            peer.session.drop_unless_used(indices);
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
        if !session.can_seal(now) {
            self.want_handshake(id, now, true, Cause::Keepalive);
            return;
        }
        let mut message = [0; MAX_CONTROL_MESSAGE];
        if let Some(len) = session.seal(&[], &mut message) {
            let wants_rekey = session.is_initiator_older_than(REKEY_AFTER_TIME, now);
            self.send_control(id, now, out, &message[..len]);
            if wants_rekey {
                self.want_handshake(id, now, false, Cause::Renewal);
            }
        }
    }

    /// Sends a handshake message or keepalive to where the peer is.
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
            Some(2) => timers.handshake_message_sent(now),
            _ => {
                timers.keepalive = None;
                timers.passed(now);
            }
        }
        peer.sent_bytes += message.len() as u64;
        if !out.push(endpoint.address, endpoint.source, message) {
            self.drops.add(DropReason::ControlQueueFull, 1);
            return;
        }
        match message.first() {
            Some(1) => self.stats.initiations_sent += 1,
            Some(2) => self.stats.responses_sent += 1,
            _ => {}
        }
    }

    /// As [`Self::reschedule`], where data moved no deadline but those of [`Timers::data_sent`],
    /// [`Timers::received`] and [`Timers::data_received`].
    #[inline]
    pub(crate) fn reschedule_after_data(&mut self, id: PeerId) {
        if self.peers.get(id.place()).and_then(Option::as_deref).is_some_and(|peer| peer.timers.is_early) {
            self.reschedule(id);
        }
    }

    /// Puts the peer into the schedule under its next deadline, if that is earlier than where it stands.
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
