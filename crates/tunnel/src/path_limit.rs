//! The path MTU towards a peer, as a limit of inner packets.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a learnt path MTU is used, as in the kernel (net.ipv4.route.mtu_expires).
const LIMIT_EXPIRES: Duration = Duration::from_secs(600);
/// Minimum of the limit in bytes of inner packets: every host accepts 576 bytes (RFC 791, section 3.1), and
/// an attacker who forges ICMP wants packets to be small.
const MIN_LIMIT: u16 = 576;
/// Minimum of the limit for IPv6, where every link carries 1280 bytes (RFC 8200, section 5).
const MIN_LIMIT_V6: u16 = 1280;

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

    pub(crate) fn set(&mut self, bytes: u16, now: Instant) {
        *self = Self { bytes: bytes.max(MIN_LIMIT), until: Some(now + LIMIT_EXPIRES) };
    }
}
