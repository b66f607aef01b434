//! Reads and updates IP, TCP and UDP headers, and computes the Internet checksum (RFC 1071): shared by
//! splitting, coalescing and routing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use weft_checksum::{add as checksum_add, fold};

/// IPv4 protocol or IPv6 next-header number of TCP (RFC 9293).
pub const TCP: u8 = 6;
/// IPv4 protocol or IPv6 next-header number of UDP (RFC 768).
pub const UDP: u8 = 17;

/// Bytes of an IPv4 header without options (RFC 791).
pub const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header without extension headers (RFC 8200).
pub const IPV6_HEADER: usize = 40;

/// Fields of the IP header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol (IPv4) or next header (IPv6, of the fixed header: may be an extension header).
    pub protocol: u8,
    /// Bytes of the header: with options (IPv4), without extension headers (IPv6).
    pub header_len: usize,
    /// Bytes of the whole packet.
    pub total_len: usize,
    /// Whether the IPv4 header marks a fragment; for IPv6 fragments this is false and [`Self::protocol`] is
    /// 44.
    pub is_fragment: bool,
}

impl IpHeader {
    /// Reads the header of `packet`. Returns `None` if the packet is not IPv4 or IPv6, or shorter than its
    /// header says. Bytes behind `total_len` (padding) are allowed.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<IPV4_HEADER>()?;
                let header_len = usize::from(header[0] & 0xf) * 4;
                let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
                if header_len < IPV4_HEADER || total_len < header_len || total_len > packet.len() {
                    return None;
                }
                Some(Self {
                    source: IpAddr::V4(Ipv4Addr::new(header[12], header[13], header[14], header[15])),
                    destination: IpAddr::V4(Ipv4Addr::new(header[16], header[17], header[18], header[19])),
                    protocol: header[9],
                    header_len,
                    total_len,
                    is_fragment: u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0,
                })
            }
            6 => {
                let header = packet.first_chunk::<IPV6_HEADER>()?;
                let total_len = IPV6_HEADER + usize::from(u16::from_be_bytes([header[4], header[5]]));
                if total_len > packet.len() {
                    return None;
                }
                Some(Self {
                    source: IpAddr::V6(Ipv6Addr::from(*header[8..].first_chunk::<16>()?)),
                    destination: IpAddr::V6(Ipv6Addr::from(*header[24..].first_chunk::<16>()?)),
                    protocol: header[6],
                    header_len: IPV6_HEADER,
                    total_len,
                    is_fragment: false,
                })
            }
            _ => None,
        }
    }
}

/// Returns the transport protocol of `packet` and the offset of its header, behind IPv4 options and IPv6
/// extension headers. Returns `None` for an IPv4 fragment, and if the extension headers exceed the packet.
#[inline]
pub fn transport(packet: &[u8], header: &IpHeader) -> Option<(u8, usize)> {
    if header.is_fragment {
        return None;
    }
    let (mut protocol, mut at) = (header.protocol, header.header_len);
    // Hop-by-hop, routing and destination options (RFC 8200, section 4); IPv4 knows none of them.
    while matches!(protocol, 0 | 43 | 60) && packet[0] >> 4 == 6 {
        let extension = packet.get(at..at + 2)?;
        protocol = extension[0];
        at += usize::from(extension[1]) * 8 + 8;
    }
    (at <= header.total_len).then_some((protocol, at))
}

/// Returns the sum over the pseudo-header of TCP and UDP (RFC 9293, section 3.1; RFC 8200, section 8.1).
///
/// `addresses` are the source and destination as they stand in the IP header, 8 or 32 bytes.
#[inline]
pub fn pseudo_header_sum(addresses: &[u8], protocol: u8, transport_len: usize) -> u64 {
    checksum_add(u64::from(protocol) + transport_len as u64, addresses)
}

/// Returns the byte range of the source and destination addresses in an IP header, by the version nibble of
/// `first_byte`.
#[inline]
pub fn address_range(first_byte: u8) -> std::ops::Range<usize> {
    if first_byte >> 4 == 4 { 12..20 } else { 8..40 }
}

/// Recomputes the header checksum of the IPv4 packet `packet`, whose header has `header_len` bytes.
#[inline]
pub fn write_ipv4_checksum(packet: &mut [u8], header_len: usize) {
    packet[10..12].fill(0);
    let sum = !fold(checksum_add(0, &packet[..header_len]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_headers_are_refused() {
        let mut packet = [0u8; 20];
        packet[0] = 0x45;
        packet[3] = 20;
        assert!(IpHeader::parse(&packet).is_some());
        packet[3] = 21;
        assert!(IpHeader::parse(&packet).is_none());
        packet[3] = 20;
        packet[0] = 0x44;
        assert!(IpHeader::parse(&packet).is_none());
        assert!(IpHeader::parse(&[0x60; 39]).is_none());
        assert!(IpHeader::parse(&[]).is_none());
    }
}
