//! ICMP errors for packets that cannot be forwarded, so that their senders learn it at once: "host
//! unreachable" for an address that no peer has, "fragmentation needed" or "packet too big" for a packet that
//! exceeds its path.
//!
//! Before: `refusals.rs` decides to answer. After: the event loop writes the answer to the TUN.
//!
//! The source of an answer is the destination of the packet that it answers. A router would use the address
//! of its interface, which does not work behind a TUN: the kernel rejects a packet from a device as forged if
//! its source is an address of this machine. The original destination works, because the kernel routes it
//! through that device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ip::{self, IPV4_HEADER, IPV6_HEADER, IpHeader};

/// Bytes of the longest IPv4 answer, which every host accepts (RFC 1812, section 4.3.2.3).
const MAX_V4: usize = 576;
/// Bytes of the longest IPv6 answer, which every link carries (RFC 4443, section 2.4 (c)).
const MAX_V6: usize = 1280;
/// Bytes between the IP header of an answer and the packet that it quotes.
const ICMP_HEADER: usize = 8;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
/// Maximum number of extension headers to follow. A packet with more is not answered.
const MAX_EXTENSION_HEADERS: usize = 8;

/// The error that an answer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    /// No peer is reachable at the destination: host unreachable (ICMP type 3, code 1), address unreachable
    /// (ICMPv6 type 1, code 3), as in WireGuard for Linux.
    HostUnreachable,
    /// The packet is too long and must not be fragmented: fragmentation needed (ICMP type 3, code 4; RFC
    /// 1191), packet too big (ICMPv6 type 2).
    TooBig {
        /// Bytes of the longest packet that the path carries.
        mtu: u16,
    },
}

/// Returns the answer to the sender of `packet`, or `None` where an answer is not allowed (RFC 1122, section
/// 3.2.2; RFC 4443, section 2.4 (e)): to ICMP errors, to multicast and broadcast packets, to fragments other
/// than the first, and to sources that are not a single host.
///
/// The answer quotes the first segment of a super-packet: `wire_len` bytes, with the length field that it
/// would have on the wire. A checksum that the kernel left incomplete is quoted as it is.
pub(crate) fn answer(packet: &[u8], wire_len: usize, error: IcmpError) -> Option<Box<[u8]>> {
    let header = IpHeader::parse(packet)?;
    match (header.source, header.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let deserves = is_host_v4(source) && is_host_v4(destination) && may_answer_v4(packet, &header);
            deserves.then(|| answer_v4(packet, &header, wire_len, error))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let deserves = is_host_v6(source) && is_host_v6(destination) && may_answer_v6(packet);
            deserves.then(|| answer_v6(packet, &header, wire_len, error))
        }
        _ => None,
    }
}

/// Reports whether the address may belong to a single host other than this machine.
fn is_host_v4(address: Ipv4Addr) -> bool {
    // 0/8, 127/8, and 224/3: multicast, reserved, broadcast.
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

fn is_host_v6(address: Ipv6Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

fn may_answer_v4(packet: &[u8], header: &IpHeader) -> bool {
    let fragment_offset = u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff;
    if fragment_offset != 0 {
        return false;
    }
    // Only queries and replies are answered. Every other type is an error or unknown.
    let asks = |kind: &u8| matches!(kind, 0 | 8..=10 | 13..=18);
    header.protocol != ICMP || packet.get(header.header_len).is_some_and(asks)
}

fn may_answer_v6(packet: &[u8]) -> bool {
    match upper_layer(packet) {
        // Errors are below 128; 137 is a redirect.
        Some((ICMPV6, at)) => packet.get(at).is_some_and(|kind| *kind >= 128 && *kind != 137),
        Some(_) => true,
        None => false,
    }
}

/// Returns the upper-layer protocol of an IPv6 packet and the offset of its header; `None` for a fragment
/// other than the first, and for a chain of headers that cannot be followed.
fn upper_layer(packet: &[u8]) -> Option<(u8, usize)> {
    let (mut next, mut at) = (*packet.get(6)?, IPV6_HEADER);
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let len = match next {
            0 | 43 | 60 => usize::from(*packet.get(at + 1)?) * 8 + 8,
            AUTHENTICATION => usize::from(*packet.get(at + 1)?) * 4 + 8,
            FRAGMENT => {
                let offset = packet.get(at + 2..at + 4)?;
                if u16::from_be_bytes([offset[0], offset[1]]) >> 3 != 0 {
                    return None;
                }
                8
            }
            _ => return Some((next, at)),
        };
        next = *packet.get(at)?;
        at += len;
    }
    None
}

fn answer_v4(packet: &[u8], header: &IpHeader, wire_len: usize, error: IcmpError) -> Box<[u8]> {
    let wire_len = wire_len.clamp(header.header_len, header.total_len);
    let quoted = wire_len.min(MAX_V4 - IPV4_HEADER - ICMP_HEADER);
    let mut answer = vec![0; IPV4_HEADER + ICMP_HEADER + quoted];
    let total_len = (answer.len() as u16).to_be_bytes();
    let (outer, icmp) = answer.split_at_mut(IPV4_HEADER);
    // Precedence "internetwork control" (RFC 1812, section 4.3.2.5), DF set, 64 hops.
    outer[..10].copy_from_slice(&[0x45, 0xc0, total_len[0], total_len[1], 0, 0, 0x40, 0, 64, ICMP]);
    outer[12..16].copy_from_slice(&packet[16..20]);
    outer[16..20].copy_from_slice(&packet[12..16]);
    ip::write_ipv4_checksum(outer, IPV4_HEADER);

    let (code, mtu) = match error {
        IcmpError::HostUnreachable => (1, 0),
        IcmpError::TooBig { mtu } => (4, mtu),
    };
    icmp[..2].copy_from_slice(&[3, code]);
    icmp[6..8].copy_from_slice(&mtu.to_be_bytes());
    let quote = &mut icmp[ICMP_HEADER..];
    quote.copy_from_slice(&packet[..quoted]);
    if wire_len != header.total_len {
        quote[2..4].copy_from_slice(&(wire_len as u16).to_be_bytes());
        ip::write_ipv4_checksum(quote, header.header_len);
    }
    let sum = !ip::fold(ip::checksum_add(0, icmp));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.into_boxed_slice()
}

fn answer_v6(packet: &[u8], header: &IpHeader, wire_len: usize, error: IcmpError) -> Box<[u8]> {
    let wire_len = wire_len.clamp(IPV6_HEADER, header.total_len);
    let quoted = wire_len.min(MAX_V6 - IPV6_HEADER - ICMP_HEADER);
    let mut answer = vec![0; IPV6_HEADER + ICMP_HEADER + quoted];
    let (outer, icmp) = answer.split_at_mut(IPV6_HEADER);
    let payload_len = (icmp.len() as u16).to_be_bytes();
    outer[..8].copy_from_slice(&[0x60, 0, 0, 0, payload_len[0], payload_len[1], ICMPV6, 64]);
    outer[8..24].copy_from_slice(&packet[24..40]);
    outer[24..40].copy_from_slice(&packet[8..24]);

    let (kind, code, mtu) = match error {
        IcmpError::HostUnreachable => (1, 3, 0),
        IcmpError::TooBig { mtu } => (2, 0, mtu),
    };
    icmp[..2].copy_from_slice(&[kind, code]);
    icmp[4..8].copy_from_slice(&u32::from(mtu).to_be_bytes());
    let quote = &mut icmp[ICMP_HEADER..];
    quote.copy_from_slice(&packet[..quoted]);
    if wire_len != header.total_len {
        quote[4..6].copy_from_slice(&((wire_len - IPV6_HEADER) as u16).to_be_bytes());
    }
    let pseudo = ip::pseudo_header_sum(&outer[8..40], ICMPV6, icmp.len());
    let sum = !ip::fold(ip::checksum_add(pseudo, icmp));
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.into_boxed_slice()
}

#[cfg(test)]
mod tests;
