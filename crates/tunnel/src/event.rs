//! State changes of peers that the caller may want to know.

use std::net::SocketAddr;

use crate::key::PublicKey;

/// A change of a peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake completed: packets can pass in both directions.
    HandshakeComplete {
        /// Public key of the peer.
        peer: PublicKey,
    },
    /// Initiations remain unanswered. Reported after the third, which is after 15 s, and then after every
    /// sixth, each time when the next initiation is sent. New packets for the peer do not restart the count.
    HandshakeUnanswered {
        /// Public key of the peer.
        peer: PublicKey,
        /// Number of unanswered initiations, which are at least 5 s apart.
        initiations: u32,
    },
    /// No handshake completed for 90 s (Rekey-Attempt-Time): weft stops trying until there is something to
    /// send.
    HandshakeFailed {
        /// Public key of the peer.
        peer: PublicKey,
    },
    /// An authenticated message came from another address than before: the peer roamed.
    EndpointChanged {
        /// Public key of the peer.
        peer: PublicKey,
        /// New endpoint of the peer.
        endpoint: SocketAddr,
    },
}
