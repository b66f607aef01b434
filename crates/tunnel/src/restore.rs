//! What a tunnel before this one knew of its peers: told once after they were added, before they are heard from.

use std::net::IpAddr;
use std::time::Instant;

use crate::initiations::Cause;
use crate::key::PublicKey;
use crate::tunnel::Tunnel;

/// What is remembered of a peer. Its session is not: nobody but boringtun has the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// When its last handshake came through.
    pub last_handshake: Option<Instant>,
    /// The local address that it sent to, which it expects answers from.
    pub source: Option<IpAddr>,
    /// UDP payload bytes that were sent to it.
    pub sent_bytes: u64,
    /// UDP payload bytes that were received from it.
    pub received_bytes: u64,
    /// Whether it still has a session with us, which we have not: it sends what nobody can open until it hears a
    /// handshake from us.
    pub has_session: bool,
}

impl Tunnel {
    /// Takes over what is remembered of a peer; one with a session is asked for another one at once. False if there is
    /// no such peer.
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
