//! WireGuard's timers (whitepaper, section 6), each a deadline of a peer.
//!
//! Moving a deadline later costs nothing: the peer stays in the schedule under the earlier time, wakes once
//! without work, and is scheduled again for the right time. An idle peer has no deadline and causes no
//! wake-ups.

use std::time::{Duration, Instant};

use crate::budget::Work;
use crate::drop_reason::DropReason;
use crate::event::Event;
use crate::initiations::Cause;
use crate::peer::PeerId;
use crate::session::{REJECT_AFTER_TIME, SessionContext};
use crate::transmit::{ControlQueue, MAX_CONTROL_MESSAGE};
use crate::tunnel::{Progress, Tunnel};

/// Interval between handshake initiations to a peer: the next is sent after this, and never earlier.
pub(crate) const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which data from a peer is answered, by a keepalive if there is nothing else to send.
pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An initiator begins a new handshake when it sends on a session this old (whitepaper, section 6.2,
/// Rekey-After-Time).
pub(crate) const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// How long handshakes are attempted for staged packets.
const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// Number of unanswered initiations before the first [`Event::HandshakeUnanswered`], and between two later
/// events.
const UNANSWERED: (u32, u32) = (3, 6);
/// Maximum random addition to the delay of a handshake, so that two ends do not collide forever.
const MAX_JITTER_MS: u32 = 334;
/// Free slots of the control queue that are required before one peer's timers are handled. They send at most
/// a keepalive; initiations are queued, and check for a slot when they are sent.
const SLOTS_PER_TIMEOUT: usize = 2;

/// Maximum number of initiations that one call sends: 0.2 to 0.3 ms each, and a turn has two calls.
const INITIATIONS_PER_CALL: usize = 2;
/// Maximum number of peers whose timers one call handles: about a microsecond each, without initiations.
const PEERS_PER_CALL: usize = 256;

/// Why the tunnel has to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// To send a handshake initiation, for the first time or again.
    Handshake,
    /// To answer data with a keepalive, because nothing else was sent to the peer.
    Keepalive,
    /// To hold a NAT mapping open.
    PersistentKeepalive,
    /// To start a handshake, because data that was sent remained unanswered.
    Silence,
    /// To wipe the keys of sessions that ended.
    SessionExpiry,
}

/// The deadlines of one peer.
#[derive(Debug)]
pub(crate) struct Timers {
    /// When to send a handshake initiation.
    handshake: Option<Instant>,
    /// Start of the present attempt at a handshake.
    trying_since: Option<Instant>,
    /// Initiations sent since the last handshake completed, or since attempts were last given up.
    unanswered: u32,
    /// When the last initiation or response was sent.
    last_handshake_message: Option<Instant>,
    keepalive: Option<Instant>,
    silence: Option<Instant>,
    persistent: Option<Instant>,
    persistent_interval: Option<Duration>,
    session_expiry: Option<Instant>,
    jitter: u32,
    /// Time of the peer's entry in the tunnel's schedule.
    pub(crate) scheduled: Option<Instant>,
    /// Whether a deadline is earlier than that entry, so that the peer has to be scheduled again.
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
            // The first keepalive is due at once, which brings the tunnel up.
            persistent: persistent_interval.map(|_| now),
            persistent_interval,
            session_expiry: None,
            jitter: seed | 1,
            scheduled: None,
            is_early: false,
        }
    }

    /// Sets the interval. A keepalive that this enables is due at once, as in the kernel's WireGuard.
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

    /// Handles the first endpoint of a peer: a persistent keepalive is due at once, as if it was enabled now.
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

    /// Records that data was sealed for the peer.
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

    /// Records that an authentic message came from the peer.
    #[inline]
    pub(crate) fn received(&mut self, now: Instant) {
        self.silence = None;
        self.passed(now);
    }

    /// Records that data came from the peer.
    #[inline]
    pub(crate) fn data_received(&mut self, now: Instant) {
        if self.keepalive.is_none() {
            let at = now + KEEPALIVE_TIMEOUT;
            self.keepalive = Some(at);
            self.set(at);
        }
    }

    /// Makes a keepalive due at `at`, unless something else is sent before.
    pub(crate) fn keepalive_by(&mut self, at: Instant) {
        self.keepalive = Some(self.keepalive.map_or(at, |earlier| earlier.min(at)));
        self.set(at);
    }

    /// Makes a handshake due at `at`, unless something is received before.
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

    /// Records that a deadline was set. Each packet sets a deadline, and almost always the peer's entry in
    /// the schedule is earlier.
    #[inline]
    fn set(&mut self, at: Instant) {
        self.is_early |= self.scheduled.is_none_or(|scheduled| at < scheduled);
    }

    /// Reports whether a handshake is being attempted and has not completed yet.
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
        // The peer is about to confirm the session: an initiation of our own waits for that.
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
        // boringtun ends its sessions if an initiation stays unanswered for 90 s, so that initiation is
        // repeated; but not before a late response to it can have arrived.
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
