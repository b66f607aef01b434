//! The way to a peer while it changes: which source address, how large a packet, and how the peer learns of it.
//!
//! Called by the event loop: with what the socket found out about a path, and with what the control thread found out
//! about this machine's addresses and routes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::key::PublicKey;
use crate::peer::PeerId;
use crate::session::{DATA_OVERHEAD, REJECT_AFTER_TIME};
use crate::tunnel::Tunnel;

/// How long what was learnt of a path is believed, as the kernel does (net.ipv4.route.mtu_expires).
const LIMIT_EXPIRES: Duration = Duration::from_secs(600);
/// No path is believed to carry less than this inside: every host accepts 576 bytes (RFC 791, section 3.1), and
/// whoever forges ICMP wants packets to be small.
const MIN_LIMIT: u16 = 576;
/// The same for IPv6, where every link carries 1280 bytes (RFC 8200, section 5).
const MIN_LIMIT_V6: u16 = 1280;
/// How long the routing table alone chooses the source after the way to a peer changed. Meanwhile the peer may still
/// send to the address that it knows, which is not to be taken for the one to answer from.
const SOURCE_HOLD: Duration = Duration::from_secs(5);
/// When a peer that sent nothing since its way changed is asked by a handshake whether it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// What is sent because ways changed is spread over this for each peer of the tunnel: 10,000 take two seconds.
const SPREAD_PER_PEER: Duration = Duration::from_micros(200);

/// The largest packets for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLimit {
    /// Bytes of an inner packet that its path carries in one piece; `u16::MAX` while nothing is known.
    bytes: u16,
    /// Until when that is believed.
    until: Option<Instant>,
}

impl Default for PathLimit {
    fn default() -> Self {
        Self { bytes: u16::MAX, until: None }
    }
}

impl PathLimit {
    /// Bytes of an inner packet that pass in one piece, as far as is known.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.bytes)
    }

    /// The limit, if there is one.
    pub(crate) fn known(&self) -> Option<u16> {
        self.until.map(|_| self.bytes)
    }

    /// The limit for packets to an address.
    pub(crate) fn for_packet_to(&self, destination: IpAddr) -> u16 {
        if destination.is_ipv6() { self.bytes.max(MIN_LIMIT_V6) } else { self.bytes }
    }

    /// Whether a packet as long as this is to be refused. One that may be fragmented on its way is not: it goes in
    /// pieces outside.
    #[cold]
    pub(crate) fn refuses(&mut self, packet: &[u8], wire_len: usize, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            // The path may have grown: what is sent now finds out.
            *self = Self::default();
        }
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let stays_whole = is_v6 || packet.get(6).is_some_and(|flags| flags & 0x40 != 0);
        let limit = if is_v6 { self.bytes.max(MIN_LIMIT_V6) } else { self.bytes };
        stays_whole && wire_len > usize::from(limit)
    }

    fn set(&mut self, bytes: u16, now: Instant) {
        *self = Self { bytes: bytes.max(MIN_LIMIT), until: Some(now + LIMIT_EXPIRES) };
    }
}

impl Tunnel {
    /// The path to the peer carries packets of `outer_mtu` bytes, IP header included, and larger ones in pieces or
    /// not at all. Inner packets that do not fit and may not be fragmented are answered by ICMP from now on, for ten
    /// minutes or until the path changes.
    pub fn limit_path(&mut self, id: PeerId, outer_mtu: u16, now: Instant) {
        let Some(peer) = self.peer_mut(id) else { return };
        let Some(endpoint) = peer.endpoint else { return };
        let limit = usize::from(outer_mtu).saturating_sub(outer_overhead(endpoint.address));
        peer.path_limit.set(limit as u16, now);
    }

    /// The way to a peer changed. False if there is none.
    pub(crate) fn path_changed(&mut self, key: &PublicKey, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        if let Some(peer) = self.peer_mut(id) {
            peer.path_limit = PathLimit::default();
            peer.source_held_until = Some(now + SOURCE_HOLD);
        }
        self.forget_source(id);
        self.speak_up(id, now);
        true
    }

    /// The machine slept. False if there is no such peer.
    pub(crate) fn resumed(&mut self, key: &PublicKey, slept: Duration, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        if slept < REJECT_AFTER_TIME {
            // Its session may be alive, but a NAT in between may have forgotten us.
            self.speak_up(id, now);
        } else if self.peer_mut(id).is_some_and(|peer| peer.in_use(now).can_seal(now)) {
            let delay = self.spread(id);
            self.ask_after(id, delay, now);
        }
        true
    }

    /// Lets a peer with a session hear from us soon, and asks for a handshake if it is not heard of.
    fn speak_up(&mut self, id: PeerId, now: Instant) {
        let delay = self.spread(id);
        let Some(peer) = self.peer_mut(id) else { return };
        if !peer.in_use(now).can_seal(now) || peer.endpoint.is_none() {
            return;
        }
        peer.timers.keepalive_by(now + delay);
        self.ask_after(id, delay + ASK_AFTER, now);
    }

    fn ask_after(&mut self, id: PeerId, delay: Duration, now: Instant) {
        if let Some(peer) = self.peer_mut(id) {
            peer.timers.answer_by(now + delay);
        }
        self.reschedule(id);
    }

    /// The source address towards a peer that sends to `local`: that one, unless the routing table alone is to
    /// choose now.
    pub(crate) fn source_for(&mut self, id: PeerId, local: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
        let peer = self.peer_mut(id)?;
        let is_held = peer.source_held_until.is_some_and(|until| now < until);
        if is_held {
            return None;
        }
        peer.source_held_until = None;
        local
    }

    /// A delay for what all peers get at once: none for one peer, some seconds for thousands.
    fn spread(&self, id: PeerId) -> Duration {
        // The places of the peers are spread evenly, which is all that is needed.
        if self.peers.len() > 1 { SPREAD_PER_PEER * id.place() as u32 } else { Duration::ZERO }
    }
}

/// Bytes that the tunnel adds to an inner packet on its way to an endpoint: IP, UDP and data message.
fn outer_overhead(endpoint: SocketAddr) -> usize {
    let ip = if endpoint.is_ipv4() { crate::ip::IPV4_HEADER } else { crate::ip::IPV6_HEADER };
    ip + 8 + DATA_OVERHEAD
}
