//! Numbered UDP packets over IPv4, as inner packets of the tunnel.

use std::net::Ipv4Addr;

/// Length of the IPv4 and UDP headers.
pub const HEADERS: usize = 28;
/// Length of the stamp, with which the payload begins: run, peer, number.
pub const STAMP: usize = 16;

/// The identification of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// The measurement.
    pub run: u32,
    /// The peer that sends it, or that it is for.
    pub peer: u32,
    /// Counts the packets of the peer.
    pub number: u64,
}

impl Stamp {
    /// Writes the stamp to the start of a payload of at least [`STAMP`] bytes.
    pub fn write(self, payload: &mut [u8]) {
        payload[..4].copy_from_slice(&self.run.to_be_bytes());
        payload[4..8].copy_from_slice(&self.peer.to_be_bytes());
        payload[8..STAMP].copy_from_slice(&self.number.to_be_bytes());
    }

    /// Reads the stamp of a payload; `None` if it is too short.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let word = |at: usize| payload.get(at..)?.first_chunk().copied().map(u32::from_be_bytes);
        let number = u64::from_be_bytes(*payload.get(8..)?.first_chunk()?);
        Some(Self { run: word(0)?, peer: word(4)?, number })
    }
}

/// Source and destination of an inner packet, addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Of the sender.
    pub source: (Ipv4Addr, u16),
    /// Of the receiver.
    pub destination: (Ipv4Addr, u16),
}

/// Writes a packet of `packet.len()` bytes, which has room for headers and stamp. The rest has to be zero, so
/// that the checksum covers a few words only.
pub(super) fn write(packet: &mut [u8], flow: Flow, stamp: Stamp) {
    let total = packet.len() as u16;
    let udp_len = total - 20;
    packet[..4].copy_from_slice(&[0x45, 0, (total >> 8) as u8, total as u8]);
    packet[4..12].copy_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..16].copy_from_slice(&flow.source.0.octets());
    packet[16..20].copy_from_slice(&flow.destination.0.octets());
    let sum = checksum(sum_of(&packet[..20]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&flow.source.1.to_be_bytes());
    packet[22..24].copy_from_slice(&flow.destination.1.to_be_bytes());
    packet[24..26].copy_from_slice(&udp_len.to_be_bytes());
    packet[26..28].copy_from_slice(&[0, 0]);
    stamp.write(&mut packet[HEADERS..]);
    let pseudo = sum_of(&packet[12..20]) + 17 + u64::from(udp_len);
    let sum = match checksum(pseudo + sum_of(&packet[20..HEADERS + STAMP])) {
        0 => 0xffff,
        sum => sum,
    };
    packet[26..28].copy_from_slice(&sum.to_be_bytes());
}

/// Returns the destination port and payload of a UDP packet without IP options.
pub(super) fn parse(packet: &[u8]) -> Option<(u16, &[u8])> {
    let is_udp = packet.first() == Some(&0x45) && packet.get(9) == Some(&17);
    let port = u16::from_be_bytes(*packet.get(22..)?.first_chunk()?);
    is_udp.then_some(())?;
    Some((port, packet.get(HEADERS..)?))
}

/// Returns the sum of 16-bit words (RFC 1071); `bytes` has an even length.
fn sum_of(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum()
}

/// Returns the Internet checksum (RFC 1071) of a sum.
fn checksum(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
