//! Inner packets that say what they are, so that the receiver can check all of them.

use std::net::Ipv4Addr;

use weft_tunnel::ip;

/// Bytes of a packet without filling: IPv4, UDP, and [`Label`].
pub(crate) const LEAST: usize = 28 + 24;

/// What a packet says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The number of the packet in the world.
    pub(crate) number: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) flow: u32,
    /// The place of the packet in its flow.
    pub(crate) place: u32,
}

/// The address of a node inside the tunnel.
pub(crate) fn inner(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1)
}

impl Label {
    /// Returns the packet of `len` bytes, from `source` to `destination`.
    pub(crate) fn packet(&self, source: Ipv4Addr, destination: Ipv4Addr, len: usize) -> Vec<u8> {
        let len = len.max(LEAST);
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, ip::UDP, 0, 0];
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        packet.extend(source.octets().into_iter().chain(destination.octets()));
        ip::write_ipv4_checksum(&mut packet, 20);
        packet.extend((self.flow as u16).to_be_bytes());
        packet.extend(9_u16.to_be_bytes());
        packet.extend((len as u16 - 20).to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(self.number.to_be_bytes());
        for word in [self.from, self.to, self.flow, self.place] {
            packet.extend(word.to_be_bytes());
        }
        let filling = self.number as u8;
        packet.extend((0..len - LEAST).map(|at| filling.wrapping_add(at as u8)));
        packet
    }

    pub(crate) fn of(packet: &[u8]) -> Self {
        let word = |at: usize| u32::from_be_bytes(*packet[at..].first_chunk().unwrap());
        let number = u64::from_be_bytes(*packet[28..].first_chunk().unwrap());
        Self { number, from: word(36), to: word(40), flow: word(44), place: word(48) }
    }
}
