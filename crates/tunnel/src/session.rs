//! The interface to boringtun's sessions and handshakes: no other file uses `boringtun::noise`, and the
//! workarounds for its interface are here.
//!
//! boringtun holds the keys and the replay window. weft itself decides when to start a handshake, when a
//! session ends and what is staged (`timers.rs`, `staging.rs`), because boringtun's timers use a clock that
//! it reads only in `update_timers`, and its packet queue drops silently. So its clock is refreshed right
//! before each handshake message, and data messages never depend on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};

use crate::MOCK_CLOCK;
use crate::clean_stack::with_clean_stack;
use crate::cookie::CookieGenerator;
use crate::drop_reason::DropReason;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::mac;
use crate::peer_id::PeerId;
use crate::peer_index::PeerIndex;
use crate::transmit::MAX_CONTROL_MESSAGE;

/// Bytes that encryption adds to a padded packet: header 16, tag 16 (whitepaper, section 5.4.6).
pub(crate) const DATA_OVERHEAD: usize = 32;
/// The age from which a session neither seals nor opens (whitepaper, section 6.1, Reject-After-Time).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Counters from here on are of no session (whitepaper, section 6.1).
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// An initiator begins a new handshake when it sends on a session this old (whitepaper, section 6.2,
/// Rekey-After-Time).
const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// Number of sessions of a peer that boringtun keeps, in slots by the low bits of their index.
const SESSION_SLOTS: usize = 8;
/// Number of low bits of boringtun's indices that count handshakes.
const SESSION_BITS: u32 = 8;
const NUMBER_MASK: u32 = u32::MAX >> SESSION_BITS;
/// Bytes of a handshake response.
const RESPONSE_LEN: usize = 92;
/// Number of forged responses to one initiation after which the sender has to prove its address. Each costs
/// two X25519, and an attacker that sees the initiation on the wire can make any number.
const FORGED_RESPONSES: u8 = 8;

/// The keys of the interface, as handshakes need them.
pub(crate) struct Identity {
    private_key: PrivateKey,
    pub(crate) public_key: PublicKey,
    // Every message has passed the gate. boringtun verifies its macs again, and must not count it against a
    // rate limit again.
    unlimited: Arc<RateLimiter>,
}

impl Identity {
    pub(crate) fn new(private_key: PrivateKey) -> Self {
        let public_key = private_key.public_key();
        let unlimited = Arc::new(RateLimiter::new(&public_key.to_x25519(), u64::MAX));
        Self { private_key, public_key, unlimited }
    }

    /// Returns the static public key that an initiation was made with. Costs one X25519.
    pub(crate) fn identify(&self, initiation: &[u8]) -> Result<PublicKey, DropReason> {
        let Ok(Packet::HandshakeInit(init)) = Tunn::parse_incoming_packet(initiation) else {
            return Err(DropReason::MalformedDatagram);
        };
        let parse =
            || parse_handshake_anon(&self.private_key.to_x25519(), &self.public_key.to_x25519(), &init);
        with_clean_stack(parse)
            .map(|half| PublicKey::from_bytes(half.peer_static_public))
            .map_err(|_| DropReason::UnknownPeer)
    }
}

/// The peer of a session, and the other state that a handshake needs.
pub(crate) struct SessionContext<'a> {
    pub(crate) identity: &'a Identity,
    pub(crate) indices: &'a mut PeerIndex,
    pub(crate) peer: PeerId,
    pub(crate) key: PublicKey,
}

/// One key pair agreed with the peer, as boringtun holds it.
#[derive(Clone, Copy, Debug)]
struct Keys {
    index: u32,
    /// Index of the session on the wire.
    wire: u32,
    established: Instant,
    initiator: bool,
    /// Whether another shard drew the index that messages carry.
    has_moved: bool,
    /// The counter after the highest one that arrived.
    expected: u64,
}

impl Keys {
    fn new(index: u32, wire: u32, established: Instant, initiator: bool) -> Self {
        Self { index, wire, established, initiator, has_moved: false, expected: 0 }
    }

    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.established) < REJECT_AFTER_TIME
    }

    /// Records the counter of an authentic data message, and returns by how much it is ahead.
    #[inline]
    fn advance(&mut self, counter: u64) -> u64 {
        let advance = (counter + 1).saturating_sub(self.expected);
        self.expected += advance;
        advance
    }
}

/// Content of an authentic data message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// An IP packet, with its length in bytes, at the start of the destination buffer.
    Packet(usize),
    /// No packet.
    Keepalive,
    /// Bytes that are not an IP packet.
    Malformed,
}

/// Result of opening a data message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) content: Content,
    /// Whether the message is the first on a session that we answered, which allows us to send on that
    /// session.
    pub(crate) confirmed: bool,
    /// By how much the counter of the message is above the highest one before: 1 in order, more after
    /// missing messages, 0 if a later message arrived first.
    pub(crate) advance: u64,
}

/// An initiation of ours whose response boringtun would accept.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    index: u32,
    wire: u32,
    /// Responses to it that were not authentic.
    failures: u8,
}

/// The sessions with one peer, and the handshake in progress.
///
/// boringtun's state (25 KB and an X25519) is built when it is first needed, and dropped if the peer sent no
/// valid handshake message. Otherwise it is kept, because boringtun alone knows the timestamps of the last
/// initiations, its own and the peer's.
pub(crate) struct Session {
    /// High 24 bits of boringtun's indices, which distinguish the [`Session`]s of a peer.
    number: u32,
    preshared_key: Option<PresharedKey>,
    tunn: Option<Box<Tunn>>,
    // boringtun does not expose its sessions. These fields mirror them: same slots, same rule for the current
    // session.
    slots: [Option<Keys>; SESSION_SLOTS],
    current: u32,
    // boringtun accepts responses to its last two initiations.
    in_flight: [Option<InFlight>; 2],
    // The initiation that boringtun waits for a response to. Once boringtun has answered an initiation of the
    // peer it does not wait any more, though it would still accept the response.
    initiation: Option<u32>,
    cookie: CookieGenerator,
    // Whether the peer sent a valid handshake message, so that boringtun's state has to be kept.
    was_there: bool,
}

impl Session {
    pub(crate) fn new(preshared_key: Option<PresharedKey>) -> Self {
        Self {
            number: 0,
            preshared_key,
            tunn: None,
            slots: [None; SESSION_SLOTS],
            current: 0,
            in_flight: [None; 2],
            initiation: None,
            cookie: CookieGenerator::default(),
            was_there: false,
        }
    }

    /// Returns a session that can replace this one while both are in use.
    pub(crate) fn successor(&self, preshared_key: Option<PresharedKey>) -> Self {
        Self { number: self.number.wrapping_add(1) & NUMBER_MASK, ..Self::new(preshared_key) }
    }

    /// Reports whether an index of boringtun's belongs to this session.
    #[inline]
    pub(crate) fn has_index(&self, index: u32) -> bool {
        index >> SESSION_BITS == self.number
    }

    /// Reports whether at least [`FORGED_RESPONSES`] responses to the initiation with this index of
    /// boringtun's were not authentic.
    pub(crate) fn is_attacked(&self, index: u32) -> bool {
        let mut sent = self.in_flight.iter().flatten();
        sent.any(|sent| sent.index == index && sent.failures >= FORGED_RESPONSES)
    }

    /// Reports whether boringtun's state is built.
    pub(crate) fn is_built(&self) -> bool {
        self.tunn.is_some()
    }

    fn build(&mut self, context: &SessionContext<'_>) -> &mut Tunn {
        self.tunn.get_or_insert_with(|| {
            let build = || {
                Box::new(Tunn::new(
                    context.identity.private_key.to_x25519(),
                    context.key.to_x25519(),
                    self.preshared_key.as_ref().map(|key| *key.as_bytes()),
                    None,
                    self.number,
                    Some(Arc::clone(&context.identity.unlimited)),
                ))
            };
            with_clean_stack(build)
        })
    }

    /// Drops boringtun's state, unless the peer sent a valid handshake message.
    pub(crate) fn drop_unless_used(&mut self, indices: &mut PeerIndex) {
        // The simulation's clock does not advance the wall clock, which boringtun reads once, when its state
        // is built. A second state would start at the same timestamp again.
        if !self.was_there && !MOCK_CLOCK {
            self.clear(indices);
        }
    }

    /// Ends all sessions and the handshake in progress.
    pub(crate) fn clear(&mut self, indices: &mut PeerIndex) {
        for keys in self.slots.iter_mut().filter_map(Option::take) {
            indices.remove(keys.wire);
        }
        self.forget_initiations(indices);
        self.tunn = None;
        self.was_there = false;
    }

    /// Takes no response to the initiations in flight any more.
    pub(crate) fn forget_initiations(&mut self, indices: &mut PeerIndex) {
        for initiation in self.in_flight.iter_mut().filter_map(Option::take) {
            indices.remove(initiation.wire);
        }
        self.initiation = None;
    }

    /// Gives the sessions of a peer that moved here indices of this shard. Returns for each the index that
    /// messages carry, and the new one.
    pub(crate) fn rename(
        &mut self,
        peer: PeerId,
        indices: &mut PeerIndex,
    ) -> impl Iterator<Item = (u32, u32)> {
        self.slots.iter_mut().flatten().map(move |keys| {
            keys.has_moved = true;
            let wire = indices.draw(peer, keys.index);
            (std::mem::replace(&mut keys.wire, wire), wire)
        })
    }

    /// Reports whether a session from before the peer moved here is alive.
    pub(crate) fn has_moved(&self, now: Instant) -> bool {
        self.slots.iter().flatten().any(|keys| keys.has_moved && keys.is_alive(now))
    }

    /// Reports whether a message arrived on a session that is newer than the move of the peer to this shard.
    pub(crate) fn is_next_in_use(&self) -> bool {
        self.slots.iter().flatten().any(|keys| !keys.has_moved && keys.expected > 0)
    }

    /// Returns the indices of its sessions and of the initiations in flight: each as it is on the wire, and
    /// boringtun's.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let sessions = self.slots.iter().flatten().map(|keys| (keys.wire, keys.index));
        sessions.chain(self.in_flight.iter().flatten().map(|sent| (sent.wire, sent.index)))
    }

    fn slot(index: u32) -> usize {
        index as usize % SESSION_SLOTS
    }

    fn current(&self) -> Option<&Keys> {
        self.slots[Self::slot(self.current)].as_ref().filter(|keys| keys.index == self.current)
    }

    /// Reports whether there is a session to seal with.
    pub(crate) fn can_seal(&self, now: Instant) -> bool {
        self.current().is_some_and(|keys| keys.is_alive(now))
    }

    /// Reports whether the session to seal with is so old that its initiator begins a new handshake when it
    /// sends (whitepaper, section 6.2). Returns `None` if there is no session to seal with.
    #[inline]
    pub(crate) fn wants_rekey(&self, now: Instant) -> Option<bool> {
        let keys = self.current()?;
        let age = now.duration_since(keys.established);
        (age < REJECT_AFTER_TIME).then_some(keys.initiator && age >= REKEY_AFTER_TIME)
    }

    /// Returns when [`Self::refresh`] has to be called to wipe keys: those of the oldest session, or, when no
    /// session is left, what a handshake left behind.
    pub(crate) fn wipe_at(&self, last_handshake: Option<Instant>, now: Instant) -> Option<Instant> {
        self.tunn.as_ref()?;
        // boringtun counts whole nanoseconds of another clock: one more second certainly covers the
        // difference.
        let margin = Duration::from_secs(1);
        let oldest = self.slots.iter().flatten().map(|keys| keys.established).min();
        match oldest {
            Some(established) => Some(established + REJECT_AFTER_TIME + margin),
            None => last_handshake.map(|at| at + REJECT_AFTER_TIME * 3 + margin).filter(|at| *at > now),
        }
    }

    /// Reports whether we initiated the current session and it is at least as old as `age`.
    pub(crate) fn is_initiator_older_than(&self, age: Duration, now: Instant) -> bool {
        self.current().is_some_and(|keys| keys.initiator && now.duration_since(keys.established) >= age)
    }

    /// Encrypts `packet` into `out`, which has at least [`DATA_OVERHEAD`] bytes more, and returns the length
    /// of the message. An empty packet makes a keepalive. Returns `None` if there is no session.
    pub(crate) fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        self.current()?;
        match self.tunn.as_mut()?.encapsulate(packet, out) {
            TunnResult::WriteToNetwork(message) if message.first() == Some(&4) => Some(message.len()),
            _ => None,
        }
    }

    /// Decrypts the data message `datagram`, whose index boringtun knows as `index`, into `out`, which has at
    /// least as many bytes. `datagram` is restored before this returns.
    ///
    /// # Errors
    /// The message is not authentic, is a replay, or its session has ended.
    pub(crate) fn open(
        &mut self,
        index: u32,
        datagram: &mut [u8],
        now: Instant,
        out: &mut [u8],
    ) -> Result<Opened, DropReason> {
        let keys = self.slots[Self::slot(index)].as_mut();
        let keys =
            keys.filter(|keys| keys.index == index && keys.is_alive(now)).ok_or(DropReason::NoSession)?;
        let tunn = self.tunn.as_mut().ok_or(DropReason::NoSession)?;
        let counter = datagram.get(8..16).and_then(|bytes| bytes.try_into().ok());
        let counter = counter.map(u64::from_le_bytes).ok_or(DropReason::MalformedDatagram)?;
        // boringtun adds to it, and would take old ones again behind the last one.
        if counter >= REJECT_AFTER_MESSAGES {
            return Err(DropReason::Replayed);
        }
        let wire = set_index(datagram, 4, index).ok_or(DropReason::MalformedDatagram)?;
        let result = tunn.decapsulate(None, datagram, out);
        let content = match result {
            TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                Ok(Content::Packet(packet.len()))
            }
            TunnResult::Done => Ok(Content::Keepalive),
            TunnResult::Err(WireGuardError::InvalidPacket) => Ok(Content::Malformed),
            TunnResult::Err(error) => Err(reason_of(&error)),
            TunnResult::WriteToNetwork(_) => Err(DropReason::MalformedDatagram),
        };
        set_index(datagram, 4, wire);
        let content = content?;
        let advance = keys.advance(counter);
        Ok(Opened { content, confirmed: self.use_session(index), advance })
    }

    /// Makes the session of `index` the current session unless it is older. Returns true if the current
    /// session changed.
    fn use_session(&mut self, index: u32) -> bool {
        if index == self.current {
            return false;
        }
        let current = self.slots[Self::slot(self.current)].map(|keys| keys.established);
        let Some(candidate) = self.slots[Self::slot(index)] else { return false };
        if current.is_some_and(|established| candidate.established < established) {
            return false;
        }
        self.current = index;
        true
    }

    /// Reports whether boringtun waits for a response to an initiation.
    pub(crate) fn is_initiating(&self) -> bool {
        self.initiation.is_some()
    }

    /// Writes a new handshake initiation to `out` and returns its length.
    pub(crate) fn initiate(
        &mut self,
        context: &mut SessionContext<'_>,
        now: Instant,
        out: &mut [u8; MAX_CONTROL_MESSAGE],
    ) -> Option<usize> {
        self.build(context);
        self.refresh(now, context.indices);
        let tunn = self.tunn.as_mut()?;
        let len = match with_clean_stack(|| tunn.format_handshake_initiation(out, true)) {
            TunnResult::WriteToNetwork(message) => message.len(),
            _ => return None,
        };
        let index = index_at(out, 4)?;
        self.shift_in_flight(context.indices);
        let wire = context.indices.draw(context.peer, index);
        self.in_flight[0] = Some(InFlight { index, wire, failures: 0 });
        self.initiation = Some(index);
        set_index(out, 4, wire);
        self.cookie.stamp(&mut out[..len], &context.key, now);
        Some(len)
    }

    /// Follows boringtun, which starts or answers a handshake and forgets the initiation before its last one.
    fn shift_in_flight(&mut self, indices: &mut PeerIndex) {
        let last = self.in_flight[0].take();
        if let Some(forgotten) = std::mem::replace(&mut self.in_flight[1], last) {
            indices.remove(forgotten.wire);
        }
    }

    fn set_slot(&mut self, keys: Keys, indices: &mut PeerIndex) {
        if let Some(before) = self.slots[Self::slot(keys.index)].replace(keys) {
            indices.remove(before.wire);
        }
    }

    /// Updates boringtun's clock, which ends expired sessions.
    pub(crate) fn refresh(&mut self, now: Instant, indices: &mut PeerIndex) {
        let Some(tunn) = &mut self.tunn else { return };
        // Messages that boringtun's own timers want to send are discarded, because this also runs for
        // unauthenticated messages. A keepalive fits into this buffer and is thrown away; an initiation does
        // not fit, and so changes no state.
        let mut unwanted = [0; DATA_OVERHEAD];
        let _ = tunn.update_timers(&mut unwanted);
        // boringtun's clock counts suspended time, and may have ended a session that looks young here.
        let knows_none = tunn.time_since_last_handshake().is_none();
        let expired = |keys: &mut Keys| now.duration_since(keys.established) > REJECT_AFTER_TIME;
        for keys in self.slots.iter_mut().filter_map(|slot| slot.take_if(expired)) {
            indices.remove(keys.wire);
        }
        if knows_none && self.current().is_some() {
            for keys in self.slots.iter_mut().filter_map(Option::take) {
                indices.remove(keys.wire);
            }
        }
    }

    /// Answers a handshake initiation that the gate admitted: writes the response to `out` and returns its
    /// length. We may send on the session once the peer has used it.
    pub(crate) fn answer(
        &mut self,
        context: &mut SessionContext<'_>,
        initiation: &[u8],
        now: Instant,
        out: &mut [u8; MAX_CONTROL_MESSAGE],
    ) -> Result<usize, DropReason> {
        self.build(context);
        self.refresh(now, context.indices);
        let tunn = self.tunn.as_mut().ok_or(DropReason::NoSession)?;
        let len = match with_clean_stack(|| tunn.decapsulate(None, initiation, out)) {
            TunnResult::WriteToNetwork(message) => message.len(),
            TunnResult::Err(error) => return Err(reason_of(&error)),
            _ => return Err(DropReason::UnexpectedHandshake),
        };
        let index = index_at(out, 4).ok_or(DropReason::UnexpectedHandshake)?;
        self.was_there = true;
        self.shift_in_flight(context.indices);
        let wire = context.indices.draw(context.peer, index);
        self.set_slot(Keys::new(index, wire, now, false), context.indices);
        self.initiation = None;
        set_index(out, 4, wire);
        self.cookie.stamp(&mut out[..len], &context.key, now);
        Ok(len)
    }

    /// Handles the response to an initiation of ours, whose index boringtun knows as `index`: the session is
    /// usable now. Writes a keepalive to `out`. Returns its length, and whether a later initiation is still
    /// unanswered.
    pub(crate) fn conclude(
        &mut self,
        context: &mut SessionContext<'_>,
        index: u32,
        response: &[u8],
        now: Instant,
        out: &mut [u8; MAX_CONTROL_MESSAGE],
    ) -> Result<(usize, bool), DropReason> {
        let place = self.in_flight.iter().position(|sent| sent.is_some_and(|sent| sent.index == index));
        let place = place.ok_or(DropReason::UnexpectedHandshake)?;
        let mut copy: [u8; RESPONSE_LEN] = response.try_into().map_err(|_| DropReason::MalformedDatagram)?;
        set_index(&mut copy, 8, index);
        mac::stamp(&mut copy, &context.identity.public_key, None);
        self.refresh(now, context.indices);
        let tunn = self.tunn.as_mut().ok_or(DropReason::UnexpectedHandshake)?;
        let result = match with_clean_stack(|| tunn.decapsulate(None, &copy, out)) {
            TunnResult::WriteToNetwork(message) => Ok(message.len()),
            TunnResult::Err(error) => Err(reason_of(&error)),
            _ => Err(DropReason::UnexpectedHandshake),
        };
        let mut initiation = self.in_flight[place].take().ok_or(DropReason::UnexpectedHandshake)?;
        let wire = initiation.wire;
        let len = match result {
            Ok(len) => len,
            Err(reason) => {
                initiation.failures = initiation.failures.saturating_add(1);
                self.in_flight[place] = Some(initiation);
                return Err(reason);
            }
        };
        self.was_there = true;
        self.set_slot(Keys::new(index, wire, now, true), context.indices);
        self.use_session(index);
        self.initiation = self.initiation.filter(|last| *last != index);
        Ok((len, self.is_initiating()))
    }

    /// Decrypts and keeps the cookie of a cookie reply, for the next handshake message.
    pub(crate) fn cookie_reply(
        &mut self,
        datagram: &[u8],
        peer: &PublicKey,
        now: Instant,
    ) -> Result<(), DropReason> {
        self.cookie.take_reply(datagram, peer, now)
    }
}

fn index_at(message: &[u8], at: usize) -> Option<u32> {
    message.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Replaces the index in a message, and returns the previous index.
#[inline]
fn set_index(message: &mut [u8], at: usize, index: u32) -> Option<u32> {
    let bytes = message.get_mut(at..)?.first_chunk_mut()?;
    Some(u32::from_le_bytes(std::mem::replace(bytes, index.to_le_bytes())))
}

fn reason_of(error: &WireGuardError) -> DropReason {
    match error {
        WireGuardError::InvalidAeadTag => DropReason::InvalidTag,
        WireGuardError::InvalidCounter | WireGuardError::DuplicateCounter => DropReason::Replayed,
        WireGuardError::NoCurrentSession | WireGuardError::WrongIndex => DropReason::NoSession,
        WireGuardError::WrongKey => DropReason::UnknownPeer,
        WireGuardError::WrongTai64nTimestamp | WireGuardError::InvalidTai64nTimestamp => {
            DropReason::ReplayedHandshake
        }
        WireGuardError::InvalidMac => DropReason::InvalidMac,
        WireGuardError::UnexpectedPacket => DropReason::UnexpectedHandshake,
        _ => DropReason::MalformedDatagram,
    }
}

// On the mock clock, boringtun's state is kept.
#[cfg(test)]
#[cfg(not(feature = "mock-instant"))]
#[path = "session/tests.rs"]
mod tests;
