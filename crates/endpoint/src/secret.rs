//! Numbers that a peer cannot guess: a keyed hash (BLAKE2s) of what they are for.

use std::net::IpAddr;

use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{KeyInit, Mac as _};

/// The two ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tuple {
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) local_port: u16,
    pub(crate) peer_port: u16,
}

/// What a number is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    InitialSequence,
    Port,
    PortTable,
    Timestamp,
    Identification,
}

/// The key.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Returns the number for a flow.
    pub(crate) fn number(&self, purpose: Purpose, tuple: &Tuple) -> u64 {
        let mut message = [0; 38];
        message[0] = purpose as u8;
        message[1] = u8::from(tuple.local.is_ipv4());
        message[2..4].copy_from_slice(&tuple.local_port.to_be_bytes());
        message[4..6].copy_from_slice(&tuple.peer_port.to_be_bytes());
        message[6..22].copy_from_slice(&bits(tuple.local).to_be_bytes());
        message[22..].copy_from_slice(&bits(tuple.peer).to_be_bytes());
        let mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(&self.0);
        // Only a key of more than 32 bytes is an error.
        let mac = mac.unwrap_or_else(|_| unreachable!("the key has 32 bytes")).chain_update(message);
        let bytes: [u8; 16] = mac.finalize().into_bytes().into();
        u128::from_be_bytes(bytes) as u64
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}
