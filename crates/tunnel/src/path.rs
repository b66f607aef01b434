//! The path to a peer when it changes: source address, packet size, and how the peer learns of the change.
//!
//! Called by the event loop with what the socket learnt of a path, and with what the control thread learnt of
//! this machine's addresses and routes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::key::PublicKey;
use crate::peer::PeerId;
use crate::session::{DATA_OVERHEAD, REJECT_AFTER_TIME};
use crate::tunnel::Tunnel;

/// How long a learnt path MTU is used, as in the kernel (net.ipv4.route.mtu_expires).
const LIMIT_EXPIRES: Duration = Duration::from_secs(600);
/// Minimum of the limit in bytes of inner packets: every host accepts 576 bytes (RFC 791, section 3.1), and
/// an attacker who forges ICMP wants packets to be small.
const MIN_LIMIT: u16 = 576;
/// Minimum of the limit for IPv6, where every link carries 1280 bytes (RFC 8200, section 5).
const MIN_LIMIT_V6: u16 = 1280;
/// How long the routing table alone chooses the source after the path to a peer changed. Meanwhile the peer
/// may still send to the old address, which must not become the source of answers again.
const SOURCE_HOLD: Duration = Duration::from_secs(5);
/// When a peer that sent nothing since its path changed is sent a handshake initiation, to find out whether
/// it is still there.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// Delay per place in the table of peers, which spreads the messages that changed paths cause: 10,000 peers
/// take two seconds.
const SPREAD_PER_PEER: Duration = Duration::from_micros(200);

/// Size limit of inner packets for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathLimit {
    /// Bytes of an inner packet that the path carries in one piece; `u16::MAX` while no limit is known.
    bytes: u16,
    /// When the limit expires.
    until: Option<Instant>,
}

impl Default for PathLimit {
    fn default() -> Self {
        Self { bytes: u16::MAX, until: None }
    }
}

impl PathLimit {
    /// Returns the bytes of an inner packet that passes in one piece, as far as is known.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.bytes)
    }

    /// Returns the limit, if one is known.
    pub(crate) fn known(&self) -> Option<u16> {
        self.until.map(|_| self.bytes)
    }

    /// Returns the limit for packets to an address.
    pub(crate) fn for_packet_to(&self, destination: IpAddr) -> u16 {
        if destination.is_ipv6() { self.bytes.max(MIN_LIMIT_V6) } else { self.bytes }
    }

    /// Reports whether a packet is too long and has to be refused. A packet that may be fragmented is not
    /// refused: its outer datagram is fragmented.
    #[cold]
    pub(crate) fn refuses(&mut self, packet: &[u8], wire_len: usize, now: Instant) -> bool {
        if self.until.is_some_and(|until| until <= now) {
            // The path may carry more by now. The next long packets find out.
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
    /// Limits inner packets to the peer to a path MTU of `outer_mtu` bytes, outer IP header included; the
    /// path carries larger packets in pieces or not at all. Inner packets that do not fit and must not be
    /// fragmented are answered by ICMP from now on, for ten minutes or until the path changes.
    pub fn limit_path(&mut self, id: PeerId, outer_mtu: u16, now: Instant) {
        let Some(peer) = self.peer_mut(id) else { return };
        let Some(endpoint) = peer.endpoint else { return };
        let limit = usize::from(outer_mtu).saturating_sub(outer_overhead(endpoint.address));
        peer.path_limit.set(limit as u16, now);
    }

    /// Handles a changed path to a peer. Returns false if there is no such peer.
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

    /// Handles a sleep of this machine. Returns false if there is no such peer.
    pub(crate) fn resumed(&mut self, key: &PublicKey, slept: Duration, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        if slept < REJECT_AFTER_TIME {
            // The session may be alive, but a NAT on the path may have dropped our mapping.
            self.speak_up(id, now);
        } else if self.peer_mut(id).is_some_and(|peer| peer.in_use(now).can_seal(now)) {
            let delay = self.spread(id);
            self.ask_after(id, delay, now);
        }
        true
    }

    /// Makes a keepalive to a peer with a session due soon, and a handshake if the peer stays silent.
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

    /// Returns the source address for packets to a peer that sends to `local`: that address, or `None` while
    /// the routing table alone chooses.
    pub(crate) fn source_for(&mut self, id: PeerId, local: Option<IpAddr>, now: Instant) -> Option<IpAddr> {
        let peer = self.peer_mut(id)?;
        let is_held = peer.source_held_until.is_some_and(|until| now < until);
        if is_held {
            return None;
        }
        peer.source_held_until = None;
        local
    }

    /// Returns the delay of a message that all peers are sent at once: none with a single peer, some seconds
    /// with thousands.
    fn spread(&self, id: PeerId) -> Duration {
        // The delay grows with the peer's place in the table, which spreads the messages evenly enough.
        if self.peers.len() > 1 { SPREAD_PER_PEER * id.place() as u32 } else { Duration::ZERO }
    }
}

/// Returns the bytes that the tunnel adds to an inner packet: the outer IP and UDP headers, and the header
/// and tag of the data message.
fn outer_overhead(endpoint: SocketAddr) -> usize {
    let ip = if endpoint.is_ipv4() { crate::ip::IPV4_HEADER } else { crate::ip::IPV6_HEADER };
    ip + 8 + DATA_OVERHEAD
}
