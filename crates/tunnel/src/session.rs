//! boringtun behind one door: no other file names it, and everything that has to be worked around is here.
//!
//! boringtun keeps the keys and the replay window; when to shake hands, when a session ends and what waits for
//! one is weft's own (`timers.rs`, `staging.rs`), because boringtun's timers act on a clock that it reads at
//! `update_timers` alone, and its packet queue drops silently. So its clock is refreshed right before each
//! handshake message, and data messages never depend on it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};

use crate::bucket::Bucket;
use crate::drop_reason::DropReason;
use crate::key::{PresharedKey, PrivateKey, PublicKey};
use crate::transmit::MAX_CONTROL_MESSAGE;

/// Bytes that encryption adds to a padded packet: header 16, tag 16 (whitepaper, section 5.4.6).
pub(crate) const DATA_OVERHEAD: usize = 32;
/// A session older than this neither seals nor opens (whitepaper, section 6.1, Reject-After-Time).
pub(crate) const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// boringtun keeps this many sessions of a peer, by the low bits of their index.
const SESSION_SLOTS: usize = 8;

/// How many handshake messages a second are worked on before sources have to prove their address with a
/// cookie. One costs 80 to 200 µs, so this is at most a twenty-fifth of the packet thread.
const HANDSHAKES_PER_SECOND: u64 = 200;
/// What of it was not used may be used at once later, twice for each peer: after a restart both ends of a peer may
/// begin at the same time.
const BURST_PER_PEER: u64 = 2;
/// Whoever has no cookie gets no more than this at once, however many peers there are: 0.2 to 0.4 s of the packet
/// thread, once, and then not again before it has grown back at the rate above.
const MAX_BURST: u64 = 2000;

/// What a handshake datagram is, once its mac1 proved that it was made for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeKind {
    /// From this key, whoever that is.
    Initiation(PublicKey),
    /// To the peer with this 24-bit index.
    Response(u32),
}

/// Why the gate did not let a handshake datagram in.
pub(crate) enum Refused {
    /// Drop it.
    Drop(DropReason),
    /// Under load, and no valid cookie: answer with this cookie reply of so many bytes.
    Cookie([u8; 64]),
}

/// A handshake datagram that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) kind: HandshakeKind,
    /// Whether that was for its cookie: its source has only a share of its own then.
    pub(crate) by_cookie: bool,
}

/// Checks handshake datagrams before any peer is touched: mac1, and under load a cookie (whitepaper,
/// section 5.3).
pub(crate) struct Gate {
    private_key: PrivateKey,
    public_key: PublicKey,
    // When there is load is decided here. boringtun would count anew each second, and save nothing for a burst, so of
    // its limiters one never asks for a cookie and one always does.
    trusting: RateLimiter,
    asking: RateLimiter,
    credit: Bucket,
}

impl Gate {
    pub(crate) fn new(private_key: PrivateKey) -> Self {
        let public_key = private_key.public_key();
        Self {
            trusting: RateLimiter::new(&public_key.to_x25519(), u64::MAX),
            asking: RateLimiter::new(&public_key.to_x25519(), 0),
            private_key,
            public_key,
            credit: Bucket::default(),
        }
    }

    /// Lets a handshake initiation or response in, or says what to do with it. `peers`: how many there are.
    pub(crate) fn admit(
        &mut self,
        source: IpAddr,
        datagram: &[u8],
        peers: usize,
        now: Instant,
    ) -> Result<Admitted, Refused> {
        let burst = (BURST_PER_PEER * peers as u64).clamp(HANDSHAKES_PER_SECOND, MAX_BURST);
        self.credit.refill(HANDSHAKES_PER_SECOND, now);
        // Peers may have gone since.
        self.credit.forgive(burst);
        let by_cookie = !self.credit.has_token(burst);
        let limiter = if by_cookie { &self.asking } else { &self.trusting };
        let mut cookie = [0; 64];
        let packet = match limiter.verify_packet(Some(source), datagram, &mut cookie) {
            Ok(packet) => packet,
            Err(TunnResult::WriteToNetwork(_)) => return Err(Refused::Cookie(cookie)),
            Err(TunnResult::Err(WireGuardError::InvalidMac)) => {
                return Err(Refused::Drop(DropReason::InvalidMac));
            }
            Err(_) => return Err(Refused::Drop(DropReason::MalformedDatagram)),
        };
        self.credit.take(u64::from(!by_cookie));
        let kind = match packet {
            Packet::HandshakeInit(init) => {
                parse_handshake_anon(&self.private_key.to_x25519(), &self.public_key.to_x25519(), &init)
                    .map(|half| HandshakeKind::Initiation(PublicKey::from_bytes(half.peer_static_public)))
                    .map_err(|_| Refused::Drop(DropReason::UnknownPeer))?
            }
            Packet::HandshakeResponse(response) => HandshakeKind::Response(response.receiver_idx >> 8),
            Packet::PacketCookieReply(_) | Packet::PacketData(_) => {
                return Err(Refused::Drop(DropReason::MalformedDatagram));
            }
        };
        Ok(Admitted { kind, by_cookie })
    }
}

/// What makes sessions for peers, away from the packet thread: each costs an X25519.
#[derive(Clone)]
pub(crate) struct SessionBuilder {
    private_key: PrivateKey,
    // Every message passed the gate already; boringtun verifies it again and must not count it again.
    unlimited: Arc<RateLimiter>,
}

impl SessionBuilder {
    pub(crate) fn new(private_key: PrivateKey) -> Self {
        let unlimited = Arc::new(RateLimiter::new(&private_key.public_key().to_x25519(), u64::MAX));
        Self { private_key, unlimited }
    }

    /// A session-less peer whose messages carry the 24-bit `index`.
    pub(crate) fn build(&self, peer: PublicKey, preshared: Option<&PresharedKey>, index: u32) -> Session {
        let tunn = Tunn::new(
            self.private_key.to_x25519(),
            peer.to_x25519(),
            preshared.map(PresharedKey::to_bytes),
            None,
            index,
            Some(Arc::clone(&self.unlimited)),
        );
        Session { tunn, slots: [None; SESSION_SLOTS], current: 0, initiation: None }
    }
}

/// One key pair agreed with the peer, as boringtun holds it.
#[derive(Clone, Copy, Debug)]
struct Keys {
    index: u32,
    established: Instant,
    initiator: bool,
}

impl Keys {
    fn is_alive(&self, now: Instant) -> bool {
        now.duration_since(self.established) < REJECT_AFTER_TIME
    }
}

/// What an authentic data message carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// An IP packet of so many bytes, at the start of the destination.
    Packet(usize),
    /// Nothing.
    Keepalive,
    /// Something that is no IP packet.
    Malformed,
}

/// What opening a data message gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) content: Content,
    /// Whether it is the first on a session that we answered: only now may we send on it.
    pub(crate) confirmed: bool,
}

/// What a handshake message led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shaken {
    /// We answered an initiation; the session is usable once the peer has used it.
    Answered,
    /// The peer answered our initiation; the session is usable now.
    Established {
        /// Whether a later initiation of ours is still unanswered.
        another_in_flight: bool,
    },
}

/// The sessions with one peer, and the handshake in progress.
pub(crate) struct Session {
    tunn: Tunn,
    // boringtun does not show its sessions, so this repeats which it holds: same slots, same rule for the
    // current one.
    slots: [Option<Keys>; SESSION_SLOTS],
    current: u32,
    // The initiation that boringtun waits for an answer to. Once it answered one of the peer's it waits no more,
    // though it would still take the answer.
    initiation: Option<u32>,
}

impl Session {
    fn slot(index: u32) -> usize {
        index as usize % SESSION_SLOTS
    }

    fn current(&self) -> Option<&Keys> {
        self.slots[Self::slot(self.current)].as_ref().filter(|keys| keys.index == self.current)
    }

    /// Whether there is a session to seal with.
    pub(crate) fn can_seal(&self, now: Instant) -> bool {
        self.current().is_some_and(|keys| keys.is_alive(now))
    }

    /// When [`Self::refresh`] has to be called for keys to be wiped: those of the oldest session, or at last
    /// whatever a handshake left.
    pub(crate) fn wipe_at(&self, last_handshake: Option<Instant>, now: Instant) -> Option<Instant> {
        // boringtun counts whole nanoseconds of another clock: a second more is certainly over.
        let margin = Duration::from_secs(1);
        let oldest = self.slots.iter().flatten().map(|keys| keys.established).min();
        match oldest {
            Some(established) => Some(established + REJECT_AFTER_TIME + margin),
            None => last_handshake.map(|at| at + REJECT_AFTER_TIME * 3 + margin).filter(|at| *at > now),
        }
    }

    /// Whether the session in use was begun by us, and is older than `age`.
    pub(crate) fn is_initiator_older_than(&self, age: Duration, now: Instant) -> bool {
        self.current().is_some_and(|keys| keys.initiator && now.duration_since(keys.established) >= age)
    }

    /// Encrypts `packet` into `out`, which has at least [`DATA_OVERHEAD`] bytes more, and gives the length.
    /// An empty packet is a keepalive. `None`: there is no session.
    pub(crate) fn seal(&mut self, packet: &[u8], out: &mut [u8]) -> Option<usize> {
        self.current()?;
        match self.tunn.encapsulate(packet, out) {
            TunnResult::WriteToNetwork(message) if message.first() == Some(&4) => Some(message.len()),
            _ => None,
        }
    }

    /// Decrypts the data message `datagram` into `out`, which has at least as many bytes. An error: it is not
    /// authentic.
    pub(crate) fn open(
        &mut self,
        datagram: &[u8],
        now: Instant,
        out: &mut [u8],
    ) -> Result<Opened, DropReason> {
        let index = datagram
            .get(4..8)
            .and_then(|bytes| bytes.first_chunk::<4>())
            .map(|bytes| u32::from_le_bytes(*bytes))
            .ok_or(DropReason::MalformedDatagram)?;
        let keys = self.slots[Self::slot(index)].filter(|keys| keys.index == index && keys.is_alive(now));
        if keys.is_none() {
            return Err(DropReason::NoSession);
        }
        let content = match self.tunn.decapsulate(None, datagram, out) {
            TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                Content::Packet(packet.len())
            }
            TunnResult::Done => Content::Keepalive,
            TunnResult::Err(WireGuardError::InvalidPacket) => Content::Malformed,
            TunnResult::Err(error) => return Err(reason_of(&error)),
            TunnResult::WriteToNetwork(_) => return Err(DropReason::MalformedDatagram),
        };
        Ok(Opened { content, confirmed: self.use_session(index) })
    }

    /// Makes the session of `index` the current one if it is not older; true if that changed anything.
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

    /// Whether boringtun waits for an answer to an initiation.
    pub(crate) fn is_initiating(&self) -> bool {
        self.initiation.is_some()
    }

    /// Writes a fresh handshake initiation to `out` and gives its length.
    pub(crate) fn initiate(&mut self, now: Instant, out: &mut [u8; MAX_CONTROL_MESSAGE]) -> Option<usize> {
        self.refresh(now);
        let len = match self.tunn.format_handshake_initiation(out, true) {
            TunnResult::WriteToNetwork(message) => message.len(),
            _ => return None,
        };
        self.initiation = out[4..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        Some(len)
    }

    /// Brings boringtun's clock up to date, which ends expired sessions.
    pub(crate) fn refresh(&mut self, now: Instant) {
        // What it wants sent by its own timers is not sent: this runs for unauthenticated messages too. A
        // keepalive fits here and is thrown away; an initiation does not, and so leaves no trace.
        let mut unwanted = [0; DATA_OVERHEAD];
        let _ = self.tunn.update_timers(&mut unwanted);
        for slot in &mut self.slots {
            if slot.is_some_and(|keys| now.duration_since(keys.established) > REJECT_AFTER_TIME) {
                *slot = None;
            }
        }
        // boringtun's clock counts suspended time and may have ended a session that looks young from here.
        if self.current().is_some() && self.tunn.time_since_last_handshake().is_none() {
            self.slots = [None; SESSION_SLOTS];
        }
    }

    /// Works on a handshake initiation or response that the gate admitted, writes the answer to `out` and
    /// gives its length.
    pub(crate) fn handshake(
        &mut self,
        datagram: &[u8],
        now: Instant,
        out: &mut [u8; MAX_CONTROL_MESSAGE],
    ) -> Result<(Shaken, usize), DropReason> {
        self.refresh(now);
        let len = match self.tunn.decapsulate(None, datagram, out) {
            TunnResult::WriteToNetwork(message) => message.len(),
            TunnResult::Err(error) => return Err(reason_of(&error)),
            _ => return Err(DropReason::UnexpectedHandshake),
        };
        let index_at = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).map(|b| u32::from_le_bytes(*b))
        };
        if datagram[0] == 1 {
            let index = index_at(out, 4).ok_or(DropReason::UnexpectedHandshake)?;
            self.slots[Self::slot(index)] = Some(Keys { index, established: now, initiator: false });
            self.initiation = None;
            Ok((Shaken::Answered, len))
        } else {
            let index = index_at(datagram, 8).ok_or(DropReason::UnexpectedHandshake)?;
            self.slots[Self::slot(index)] = Some(Keys { index, established: now, initiator: true });
            self.use_session(index);
            self.initiation = self.initiation.filter(|last| *last != index);
            let another_in_flight = self.is_initiating();
            Ok((Shaken::Established { another_in_flight }, len))
        }
    }

    /// Takes the cookie out of a cookie reply, for the next initiation.
    pub(crate) fn cookie_reply(&mut self, datagram: &[u8]) -> Result<(), DropReason> {
        match self.tunn.decapsulate(None, datagram, &mut []) {
            TunnResult::Done => Ok(()),
            TunnResult::Err(error) => Err(reason_of(&error)),
            _ => Err(DropReason::UnexpectedHandshake),
        }
    }
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
