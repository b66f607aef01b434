//! The path MTU towards a peer, as a limit of inner packets.

use std::time::{Duration, Instant};

/// How long a learnt path MTU is used. An attacker who forges ICMP wants packets to be small: the harm does
/// not last.
const LIMIT_EXPIRES: Duration = Duration::from_secs(60);
/// Minimum of the limit in bytes of inner packets. Every link carries as much of IPv6 (RFC 8200, section 5),
/// and nearly every path of IPv4. Longer outer packets are sent in pieces then.
const MIN_LIMIT: u16 = 1280;

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
        stays_whole && wire_len > self.bytes()
    }

    pub(crate) fn set(&mut self, bytes: u16, now: Instant) {
        *self = Self { bytes: bytes.max(MIN_LIMIT), until: Some(now + LIMIT_EXPIRES) };
    }
}
