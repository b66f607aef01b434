//! Datagrams that are no handshake messages: of an unknown type, too short, or data for no session.

use std::net::SocketAddr;

/// The shortest data message: 32 bytes; its payload is padded to 16 (whitepaper, 5.4.6).
const SHORTEST: usize = 32;
/// The data message of an inner packet of 1,420 bytes.
const LONGEST: usize = 32 + 1424;
const DATA: [u8; 4] = [4, 0, 0, 0];
/// First counter of forged messages: beyond the counters that a session has used, so that only the tag
/// exposes them.
const COUNTER: u64 = 1 << 40;

/// Kinds of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Junk {
    /// In turn: data with random receiver indices, messages of unknown types, and messages that are too
    /// short.
    Mixed,
    /// Data messages of various sizes with random receiver indices.
    Data,
    /// Data messages of various sizes with this receiver index, which was seen on the path to the target.
    ForIndex(u32),
}

impl Junk {
    /// Creates `count` different datagrams.
    pub(super) fn several(self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|number| self.datagram(number)).collect()
    }

    fn datagram(self, number: usize) -> Vec<u8> {
        let various = SHORTEST + 16 * (number % ((LONGEST - SHORTEST) / 16));
        match (self, number % 3) {
            (Self::ForIndex(index), _) => data(various, index, number),
            (Self::Data, _) | (Self::Mixed, 0) => data(various, rand::random(), number),
            // A type beyond the four of WireGuard.
            (Self::Mixed, 1) => begin_with(5 + (number % 250) as u8, 1 + number % 200),
            (Self::Mixed, _) => begin_with(DATA[0], 1 + number % (SHORTEST - 1)),
        }
    }
}

fn data(len: usize, index: u32, number: usize) -> Vec<u8> {
    let mut datagram = begin_with(DATA[0], len);
    datagram[..4].copy_from_slice(&DATA);
    datagram[4..8].copy_from_slice(&index.to_le_bytes());
    datagram[8..16].copy_from_slice(&(COUNTER + number as u64).to_le_bytes());
    datagram
}

fn begin_with(first: u8, len: usize) -> Vec<u8> {
    let mut datagram = vec![0; len];
    rand::fill(&mut datagram[..]);
    datagram[0] = first;
    datagram
}

/// Returns the receiver index of a data message.
pub(super) fn receiver_index(datagram: &[u8]) -> Option<u32> {
    let is_data = datagram.len() >= SHORTEST && datagram.starts_with(&DATA);
    let index = u32::from_le_bytes(*datagram.get(4..)?.first_chunk()?);
    is_data.then_some(index)
}

/// Returns what an observer learns from a data message.
pub(super) fn seen(source: SocketAddr, datagram: &[u8]) -> Option<super::ObservedMessage> {
    Some(super::ObservedMessage { source, receiver_index: receiver_index(datagram)? })
}
