//! State of peers that a previous tunnel recorded. It is restored once, after the peers were added and before
//! they send.

use std::net::IpAddr;
use std::time::Instant;

use crate::initiations::Cause;
use crate::key::PublicKey;
use crate::tunnel::Tunnel;

/// Recorded state of a peer. It does not include the session, because only boringtun has the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// When the last handshake completed.
    pub last_handshake: Option<Instant>,
    /// The local address that the peer sent to, and expects answers from.
    pub source: Option<IpAddr>,
    /// UDP payload bytes sent to the peer.
    pub sent_bytes: u64,
    /// UDP payload bytes received from the peer.
    pub received_bytes: u64,
    /// Whether the peer still has a session with us, which we have lost: we cannot open its data until a new
    /// handshake.
    pub has_session: bool,
}

impl Tunnel {
    /// Restores the recorded state of a peer. If the peer has a session with us, asks for a handshake at
    /// once, unless a handshake has completed already. Returns false if there is no such peer.
    pub(crate) fn restore(&mut self, key: &PublicKey, remembered: &Remembered, now: Instant) -> bool {
        let Some(id) = self.by_key.get(key).copied() else { return false };
        let Some(peer) = self.peer_mut(id) else { return false };
        let was_quicker = peer.last_handshake.is_some();
        peer.last_handshake = peer.last_handshake.max(remembered.last_handshake);
        peer.sent_bytes += remembered.sent_bytes;
        peer.received_bytes += remembered.received_bytes;
        if let Some(endpoint) = &mut peer.endpoint {
            endpoint.source = endpoint.source.or(remembered.source);
        }
        if remembered.has_session && !was_quicker {
            self.want_handshake(id, now, true, Cause::Keepalive);
        }
        true
    }
}
