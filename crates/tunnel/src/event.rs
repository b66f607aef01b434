//! What happened to a peer that somebody outside may want to know.

use std::net::SocketAddr;

use crate::key::PublicKey;

/// A change of a peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake came through: packets can pass both ways.
    HandshakeComplete {
        /// The peer.
        peer: PublicKey,
    },
    /// Initiations go out and remain without an answer: told after the third, which is after 15 s, and then after
    /// every sixth, each time when the next one goes out. What is sent meanwhile makes no difference.
    HandshakeUnanswered {
        /// The peer.
        peer: PublicKey,
        /// Initiations without an answer, at least 5 s apart.
        initiations: u32,
    },
    /// No handshake came through for 90 s (Rekey-Attempt-Time), and weft stopped trying until there is
    /// something to send.
    HandshakeFailed {
        /// The peer.
        peer: PublicKey,
    },
    /// An authenticated message came from another address than before: the peer moved.
    EndpointChanged {
        /// The peer.
        peer: PublicKey,
        /// Where it is now.
        endpoint: SocketAddr,
    },
}
