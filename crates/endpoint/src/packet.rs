//! IP headers: reads and writes IPv4 (RFC 791) and IPv6 (RFC 8200) with its extension headers.

use std::net::{IpAddr, Ipv4Addr};

use weft_tunnel::ip::{self, IPV4_HEADER, IPV6_HEADER, IpHeader};

/// Extension headers of a packet, at most.
const MAX_EXTENSIONS: usize = 8;
/// IPv6 next headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Bytes of a fragment header.
pub(crate) const FRAGMENT_HEADER: usize = 8;

pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

/// Where a fragment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) identification: u32,
    pub(crate) offset: usize,
    pub(crate) has_more: bool,
}

/// A received packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Of the transport header; of a fragment, what its first fragment begins with.
    pub(crate) protocol: u8,
    /// What is behind the IP headers.
    pub(crate) payload: &'a [u8],
    pub(crate) fragment: Option<Fragment>,
    /// The whole, to quote it in an error.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet. Returns `None` if it is malformed or its source cannot be a host.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = IpHeader::parse(bytes)?;
        let bytes = bytes.get(..header.total_len)?;
        let (first, payload) = bytes.split_at_checked(header.header_len)?;
        if !is_host(header.source) {
            return None;
        }
        let mut packet = Self {
            source: header.source,
            destination: header.destination,
            protocol: header.protocol,
            payload,
            fragment: None,
            bytes,
        };
        if header.source.is_ipv4() {
            if ip::fold(ip::checksum_add(0, first)) != 0xffff {
                return None;
            }
            if header.is_fragment {
                let [a, b, c, d] = *first.get(4..)?.first_chunk::<4>()?;
                let field = u16::from_be_bytes([c, d]);
                packet.fragment = Some(Fragment {
                    identification: u32::from(u16::from_be_bytes([a, b])),
                    offset: usize::from(field & 0x1fff) * 8,
                    has_more: field & 0x2000 != 0,
                });
            }
            Some(packet)
        } else {
            packet.skip_extensions()
        }
    }

    /// Skips IPv6 extension headers (RFC 8200, section 4), up to a fragment's. Returns `None` where one asks
    /// to discard the packet.
    pub(crate) fn skip_extensions(mut self) -> Option<Self> {
        for _ in 0..MAX_EXTENSIONS {
            if !matches!(self.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS) {
                return Some(self);
            }
            let [next, len, ..] = *self.payload.first_chunk::<FRAGMENT_HEADER>()?;
            let len = if self.protocol == FRAGMENT { 0 } else { usize::from(len) };
            let (header, rest) = self.payload.split_at_checked(8 + 8 * len)?;
            match self.protocol {
                FRAGMENT => {
                    let [_, _, high, low, identification @ ..] = *header.first_chunk::<FRAGMENT_HEADER>()?;
                    let field = u16::from_be_bytes([high, low]);
                    let (offset, has_more) = (usize::from(field & !7), field & 1 != 0);
                    (self.protocol, self.payload) = (next, rest);
                    if offset == 0 && !has_more {
                        // An atomic fragment (RFC 6946).
                        continue;
                    }
                    let identification = u32::from_be_bytes(identification);
                    self.fragment = Some(Fragment { identification, offset, has_more });
                    return Some(self);
                }
                // Segments left: this is not the last destination.
                ROUTING if header.get(3) != Some(&0) => return None,
                ROUTING => {}
                _ if !may_skip_options(header.get(2..)?) => return None,
                _ => {}
            }
            (self.protocol, self.payload) = (next, rest);
        }
        None
    }

    /// Reports whether the packet is marked CE (RFC 3168, section 5).
    pub(crate) fn is_marked(&self) -> bool {
        match self.bytes {
            [first, second, ..] if first >> 4 == 4 => second & 3 == 3,
            [_, second, ..] => second & 0x30 == 0x30,
            _ => false,
        }
    }

    /// Reports whether the checksum over the payload and the pseudo-header is right.
    pub(crate) fn has_valid_checksum(&self) -> bool {
        let sum = pseudo_header(self.source, self.destination, self.protocol, self.payload.len());
        ip::fold(ip::checksum_add(sum, self.payload)) == 0xffff
    }
}

/// Reports whether all options that this endpoint does not know may be skipped (RFC 8200, section 4.2).
fn may_skip_options(mut options: &[u8]) -> bool {
    while let [kind, rest @ ..] = options {
        let (skip, may) = match (kind, rest) {
            (0, _) => (0, true),
            (kind, [len, ..]) => (1 + usize::from(*len), kind >> 6 == 0),
            (_, []) => return false,
        };
        let Some(rest) = rest.get(skip..).filter(|_| may) else { return false };
        options = rest;
    }
    true
}

/// Reports whether this can be the address of one host.
pub(crate) fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_multicast() || v4.is_loopback() || v4 == Ipv4Addr::BROADCAST)
        }
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_multicast() || v6.is_loopback()),
    }
}

/// Returns the sum over the pseudo-header.
pub(crate) fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: usize) -> u64 {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut addresses = [0; 8];
            addresses[..4].copy_from_slice(&source.octets());
            addresses[4..].copy_from_slice(&destination.octets());
            ip::pseudo_header_sum(&addresses, protocol, len)
        }
        (source, destination) => {
            let mut addresses = [0; 32];
            addresses[..16].copy_from_slice(&v6(source));
            addresses[16..].copy_from_slice(&v6(destination));
            ip::pseudo_header_sum(&addresses, protocol, len)
        }
    }
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the bytes of an IP header of this family.
pub(crate) fn header_len(address: IpAddr) -> usize {
    if address.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER }
}

/// Writes an IP header to the start of `out`, which has room, and returns its length. `payload_len` includes
/// extension headers.
pub(crate) fn write_header(
    out: &mut [u8],
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    payload_len: usize,
    fragment: Option<Fragment>,
) -> usize {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = [0; IPV4_HEADER];
            (header[0], header[8], header[9]) = (0x45, 64, protocol);
            header[2..4].copy_from_slice(&((IPV4_HEADER + payload_len) as u16).to_be_bytes());
            // Not a fragment, and never one: the identification means nothing (RFC 6864).
            let field = fragment.map_or(0x4000, |fragment| {
                header[4..6].copy_from_slice(&(fragment.identification as u16).to_be_bytes());
                (fragment.offset / 8) as u16 | if fragment.has_more { 0x2000 } else { 0 }
            });
            header[6..8].copy_from_slice(&field.to_be_bytes());
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            ip::write_ipv4_checksum(&mut header, IPV4_HEADER);
            out[..IPV4_HEADER].copy_from_slice(&header);
            IPV4_HEADER
        }
        (source, destination) => {
            let mut header = [0; IPV6_HEADER + FRAGMENT_HEADER];
            (header[0], header[6], header[7]) = (0x60, protocol, 64);
            header[8..24].copy_from_slice(&v6(source));
            header[24..40].copy_from_slice(&v6(destination));
            let mut len = IPV6_HEADER;
            if let Some(fragment) = fragment {
                (header[6], header[40]) = (FRAGMENT, protocol);
                let field = fragment.offset as u16 & !7 | u16::from(fragment.has_more);
                header[42..44].copy_from_slice(&field.to_be_bytes());
                header[44..48].copy_from_slice(&fragment.identification.to_be_bytes());
                len += FRAGMENT_HEADER;
            }
            let behind = len - IPV6_HEADER + payload_len;
            header[4..6].copy_from_slice(&(behind as u16).to_be_bytes());
            out[..len].copy_from_slice(&header[..len]);
            len
        }
    }
}

/// Sets ECT(0) in a header that [`write_header`] wrote.
pub(crate) fn set_markable(header: &mut [u8]) {
    match header {
        [0x45, second, ..] => {
            *second |= 2;
            ip::write_ipv4_checksum(header, IPV4_HEADER);
        }
        [_, second, ..] => *second |= 2 << 4,
        _ => {}
    }
}

/// Writes the checksum of the transport `segment` at its offset `at`, where there are zeros.
pub(crate) fn write_checksum(
    segment: &mut [u8],
    (source, destination): (IpAddr, IpAddr),
    protocol: u8,
    at: usize,
) {
    let sum = pseudo_header(source, destination, protocol, segment.len());
    let sum = !ip::fold(ip::checksum_add(sum, segment));
    // For UDP, 0 says that there is no checksum (RFC 768); elsewhere both mean the same.
    let sum = if sum == 0 { 0xffff } else { sum };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(is_ipv4: bool) -> (IpAddr, IpAddr) {
        let [a, b] = if is_ipv4 { ["10.0.0.1", "10.0.0.2"] } else { ["fd00::1", "fd00::2"] };
        (a.parse().unwrap(), b.parse().unwrap())
    }

    fn packet(is_ipv4: bool, fragment: Option<Fragment>, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 48];
        let len = write_header(&mut bytes, addresses(is_ipv4), 17, payload.len(), fragment);
        bytes.truncate(len);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let fragment = Fragment { identification: 77, offset: 1480, has_more: true };
        for is_ipv4 in [true, false] {
            for fragment in [None, Some(fragment)] {
                let bytes = packet(is_ipv4, fragment, b"payload");
                let read = Packet::parse(&bytes).unwrap();
                assert_eq!((read.source, read.destination), addresses(is_ipv4));
                assert_eq!((read.protocol, read.payload, read.fragment), (17, &b"payload"[..], fragment));
                for len in 0..bytes.len() {
                    assert!(Packet::parse(&bytes[..len]).is_none());
                }
            }
        }
        let mut wrong = packet(true, None, b"");
        wrong[8] = 63;
        assert!(Packet::parse(&wrong).is_none(), "a header with a wrong checksum");
    }

    #[test]
    fn extension_headers_are_skipped_within_bounds() {
        let with = |extensions: &[u8], first: u8| {
            let mut bytes = packet(false, None, extensions);
            bytes[6] = first;
            bytes.extend(b"rest");
            let len = (bytes.len() - 40) as u16;
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
            Packet::parse(&bytes).map(|packet| (packet.protocol, packet.payload.to_vec()))
        };
        let rest = b"rest".to_vec();
        // Padding; routing with nothing left; an unknown option that may be skipped, and one that may not.
        assert_eq!(with(&[6, 0, 1, 4, 0, 0, 0, 0], 0), Some((6, rest.clone())));
        assert_eq!(with(&[6, 0, 0, 0, 0, 0, 0, 0], 43), Some((6, rest.clone())));
        assert_eq!(with(&[6, 0, 0, 1, 0, 0, 0, 0], 43), None);
        assert_eq!(with(&[6, 0, 0x1e, 4, 0, 0, 0, 0], 60), Some((6, rest.clone())));
        assert_eq!(with(&[6, 0, 0xde, 4, 0, 0, 0, 0], 60), None);
        assert_eq!(with(&[6, 0, 1, 5, 0, 0, 0, 0], 60), None);
        assert_eq!(with(&[6, 9, 1, 4, 0, 0, 0, 0], 60), None);
        assert_eq!(with(&[6, 0, 0, 0, 1, 2, 3, 4], 44), Some((6, rest)));
        let chain: Vec<u8> = (0..9).flat_map(|_| [60, 0, 1, 4, 0, 0, 0, 0]).collect();
        assert_eq!(with(&chain, 60), None);
    }
}
