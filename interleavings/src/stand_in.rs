//! What the modules of the product need of other crates.

use std::fmt;
use std::net::SocketAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey(u8);

/// The only peer.
pub(crate) const PEER: PublicKey = PublicKey(7);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvMeta {
    pub(crate) source: SocketAddr,
    pub(crate) len: usize,
}

/// A tunnel with one peer. Its messages have a receiver index, a number, and the length of one with a packet.
#[derive(Debug)]
pub(crate) struct Tunnel;

impl Tunnel {
    pub(crate) fn message(index: u32, number: u32) -> [u8; 40] {
        let mut message = [0; 40];
        message[..4].copy_from_slice(&index.to_le_bytes());
        message[4..8].copy_from_slice(&number.to_le_bytes());
        message
    }

    pub(crate) fn receiver_of_data(&self, message: &[u8]) -> Option<(PublicKey, u32)> {
        Some((PEER, u32::from_le_bytes(message.first_chunk().copied()?)))
    }

    pub(crate) fn number(message: &[u8]) -> u32 {
        u32::from_le_bytes(*message[4..].first_chunk().unwrap())
    }
}

/// `tracing::debug!`, which says nothing.
macro_rules! debug {
    ($($field:ident = %$value:expr),*, $text:literal) => {
        let _ = format_args!(concat!($text, $(" {}", stringify!($field)),*) $(, $value)*);
    };
}
pub(crate) use debug;
