//! Queries for packet capture: which peer a packet belongs to, and which packets are on the wire for it. They
//! change no state of the tunnel that a packet depends on.

use std::net::SocketAddr;

use crate::ip::IpHeader;
use crate::key::PublicKey;
use crate::offload::Offload;
use crate::packet::{PacketMut, TAILROOM};
use crate::peer_id::PeerId;
use crate::split;
use crate::tunnel::Tunnel;

const INITIATION: u8 = 1;
const RESPONSE: u8 = 2;

impl Tunnel {
    /// Returns the public key of a peer; `None` if the peer is no longer in the tunnel.
    pub fn peer_key(&self, id: PeerId) -> Option<PublicKey> {
        Some(self.peers.get(id.place())?.as_deref()?.public_key)
    }

    /// Returns the peer that an inner packet goes to, by its destination address.
    pub fn peer_of_destination(&mut self, packet: &[u8]) -> Option<PublicKey> {
        let id = self.allowed_ips.peer_of(IpHeader::parse(packet)?.destination)?;
        self.peer_key(id)
    }

    /// Returns the peer that an inner packet came from, by its source address.
    pub fn peer_of_source(&mut self, packet: &[u8]) -> Option<PublicKey> {
        let id = self.allowed_ips.peer_of(IpHeader::parse(packet)?.source)?;
        self.peer_key(id)
    }

    /// Returns the peer that we sent a datagram to: by our index in the datagram, else by the destination
    /// address.
    pub fn peer_of_sent(&self, datagram: &[u8], to: SocketAddr) -> Option<PublicKey> {
        let ours = match *datagram.first()? {
            INITIATION | RESPONSE => index_at(datagram, 4),
            _ => None,
        };
        self.peer_of_index(ours).or_else(|| self.peer_at(to))
    }

    /// Returns the peer that a datagram came from: by our index in the datagram, else by the source address.
    /// The datagram need not be authentic.
    pub fn peer_of_received(&self, datagram: &[u8], from: SocketAddr) -> Option<PublicKey> {
        let ours = match *datagram.first()? {
            INITIATION => None,
            RESPONSE => index_at(datagram, 8),
            _ => index_at(datagram, 4),
        };
        self.peer_of_index(ours).or_else(|| self.peer_at(from))
    }

    fn peer_of_index(&self, index: Option<u32>) -> Option<PublicKey> {
        self.peer_key(self.by_index.route(index?)?.peer)
    }

    /// Scans all peers, which only the few datagrams without an index of ours need.
    fn peer_at(&self, address: SocketAddr) -> Option<PublicKey> {
        let mut peers = self.peers.iter().flatten();
        let peer = peers.find(|peer| peer.endpoint.is_some_and(|endpoint| endpoint.address == address));
        peer.map(|peer| peer.public_key)
    }
}

fn index_at(datagram: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*datagram.get(at..)?.first_chunk()?))
}

/// Calls `each` with every packet that is on the wire for `packet`, with complete checksums and without
/// padding. A packet that cannot be split is passed on unchanged. `scratch` is a buffer that the next call
/// can reuse.
pub fn each_segment(packet: &PacketMut<'_>, scratch: &mut Vec<u8>, mut each: impl FnMut(&[u8])) {
    let bytes = packet.bytes();
    if packet.offload() == Offload::None {
        return each(bytes);
    }
    scratch.clear();
    scratch.extend_from_slice(bytes);
    scratch.resize(bytes.len() + TAILROOM, 0);
    let mut count = 0;
    let header = IpHeader::parse(bytes);
    let copy = PacketMut::new(scratch, bytes.len(), packet.offload());
    if let Some((header, mut copy)) = header.zip(copy) {
        // An MTU of 0 disables padding. `split` fails only before its first segment.
        let _ = split::split(&mut copy, &header, 0, |segment| {
            count += 1;
            each(segment);
            true
        });
    }
    if count == 0 {
        each(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP super-packet of two datagrams with incomplete checksums.
    fn super_packet() -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28 + 7, 0, 9, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend_from_slice(&[0, 1, 0, 2, 0, 15, 0, 0]);
        packet.extend_from_slice(b"abcdefg");
        packet
    }

    fn segments(packet: &[u8], offload: Offload) -> Vec<Vec<u8>> {
        let mut buffer = [packet, &[0xee; TAILROOM]].concat();
        let packet = PacketMut::new(&mut buffer, packet.len(), offload).unwrap();
        let (mut found, mut scratch) = (Vec::new(), Vec::new());
        each_segment(&packet, &mut scratch, |segment| found.push(segment.to_vec()));
        found
    }

    #[test]
    fn a_super_packet_is_seen_as_the_wire_sees_it() {
        let found = segments(&super_packet(), Offload::UdpSegmentation { segment_size: 4 });
        let payloads: Vec<&[u8]> = found.iter().map(|segment| &segment[28..]).collect();
        assert_eq!(payloads, [&b"abcd"[..], b"efg"]);
        assert_eq!((found[0][3], found[1][3], found[1][5]), (32, 31, 10));
        assert!(found.iter().all(|segment| segment[26..28] != [0, 0]), "checksums are complete");
    }

    #[test]
    fn what_cannot_be_split_is_seen_as_it_is() {
        let packet = super_packet();
        for offload in [Offload::None, Offload::TcpSegmentation { segment_size: 4 }] {
            assert_eq!(segments(&packet, offload), std::slice::from_ref(&packet));
        }
        assert_eq!(segments(b"junk", Offload::Checksum { start: 9, offset: 9 }), [b"junk"]);
    }
}
