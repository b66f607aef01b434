//! Splits a super-packet into the packets that go on the wire, in place and without copying payload.
//!
//! Before: `outbound.rs` found the peer. After: `session.rs` seals each segment, which is the one copy of its
//! payload.
//!
//! The headers of each segment are written right before its payload, over the tail of the previous segment,
//! which is sealed already. The header fields that change from segment to segment are those that the kernel's
//! own segmentation changes.

use crate::drop_reason::DropReason;
use crate::ip::{self, IpHeader};
use crate::offload::Offload;
use crate::packet::PacketMut;

/// Maximum bytes of the headers of a super-packet: IPv6 with extension headers, and a TCP header full of
/// options.
const MAX_HEADERS: usize = 256;
/// WireGuard pads packets with zeros to a multiple of this (whitepaper, section 5.4.6).
const PADDING: usize = 16;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

impl PacketMut<'_> {
    /// Returns the number of packets on the wire: 1 unless it is a super-packet.
    pub fn segments(&self) -> u64 {
        if matches!(self.offload(), Offload::None | Offload::Checksum { .. }) {
            return 1;
        }
        let Some(header) = IpHeader::parse(self.bytes()) else { return 1 };
        let Some((headers, segment)) = shape(self, &header) else { return 1 };
        header.total_len.saturating_sub(headers).div_ceil(segment).max(1) as u64
    }
}

/// Returns the bytes of the longest packet on the wire for `packet`: all of it unless it is a super-packet.
pub(crate) fn longest_segment(packet: &PacketMut<'_>, header: &IpHeader) -> usize {
    shape(packet, header)
        .map_or(header.total_len, |(headers, segment)| (headers + segment).min(header.total_len))
}

/// Returns the bytes of all packets on the wire for `packet`: its length unless it is a super-packet, whose
/// headers are repeated in each segment.
pub(crate) fn bytes_of_segments(packet: &PacketMut<'_>, header: &IpHeader) -> usize {
    shape(packet, header).map_or(header.total_len, |(headers, segment)| {
        let payload = header.total_len.saturating_sub(headers);
        payload + headers * payload.div_ceil(segment).max(1)
    })
}

/// Returns the bytes of the headers of a super-packet, and the payload bytes of each segment but the last.
/// `None` if the packet is no super-packet.
fn shape(packet: &PacketMut<'_>, header: &IpHeader) -> Option<(usize, usize)> {
    let bytes = packet.bytes();
    let (size, transport_header) = match packet.offload() {
        Offload::None | Offload::Checksum { .. } => return None,
        Offload::TcpSegmentation { segment_size } => (segment_size, None),
        Offload::UdpSegmentation { segment_size } => (segment_size, Some(8)),
    };
    let (_, at) = ip::transport(bytes, header)?;
    let transport_header = transport_header
        .unwrap_or_else(|| bytes.get(at + 12).map_or(20, |offset| usize::from(offset >> 4) * 4));
    Some((at + transport_header, usize::from(size.max(1))))
}

/// Does the offload work of `packet`, and passes each resulting packet, zero-padded to 16 bytes within `mtu`,
/// to `seal`, in order. `seal` returns false to stop.
///
/// # Errors
/// The packet is malformed. Errors occur only before the first packet was passed on.
pub(crate) fn split(
    packet: &mut PacketMut<'_>,
    header: &IpHeader,
    mtu: usize,
    mut seal: impl FnMut(&[u8]) -> bool,
) -> Result<(), DropReason> {
    let offload = packet.offload();
    let buffer = packet.buffer_mut();
    match offload {
        Offload::None => {
            seal_padded(buffer, 0, header.total_len, mtu, &mut seal);
            Ok(())
        }
        Offload::Checksum { start, offset } => {
            complete_checksum(&mut buffer[..header.total_len], start, offset)?;
            seal_padded(buffer, 0, header.total_len, mtu, &mut seal);
            Ok(())
        }
        Offload::TcpSegmentation { segment_size } => {
            split_with::<Tcp>(buffer, header, segment_size, mtu, &mut seal)
        }
        Offload::UdpSegmentation { segment_size } => {
            split_with::<Udp>(buffer, header, segment_size, mtu, &mut seal)
        }
    }
}

/// Seals `buffer[start..start + len]` with its padding, and restores the bytes that the padding overwrote.
/// Returns the result of `seal`.
fn seal_padded(
    buffer: &mut [u8],
    start: usize,
    len: usize,
    mtu: usize,
    seal: &mut impl FnMut(&[u8]) -> bool,
) -> bool {
    let padded = len.next_multiple_of(PADDING).min(mtu).max(len);
    let end = start + len;
    let pad = padded - len;
    let mut behind = [0; PADDING];
    behind[..pad].copy_from_slice(&buffer[end..end + pad]);
    buffer[end..end + pad].fill(0);
    let go_on = seal(&buffer[start..start + padded]);
    buffer[end..end + pad].copy_from_slice(&behind[..pad]);
    go_on
}

/// Completes a partial checksum (Virtual I/O Device 1.2, section 5.1.6.2): the field holds the pseudo-header
/// sum already, so the sum over everything from `start` includes it.
fn complete_checksum(packet: &mut [u8], start: u16, offset: u16) -> Result<(), DropReason> {
    let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if field + 2 > packet.len() {
        return Err(DropReason::MalformedPacket);
    }
    let sum = !ip::fold(ip::checksum_add(0, &packet[start..]));
    // A UDP checksum of zero means that there is none (RFC 768); elsewhere 0xffff means the same as zero.
    let sum = if sum == 0 { 0xffff } else { sum };
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// The position of a segment in its super-packet.
struct Position {
    payload_offset: usize,
    is_first: bool,
    is_last: bool,
}

/// The differences between TCP and UDP segmentation.
trait Transport {
    const PROTOCOL: u8;
    const CHECKSUM_AT: usize;
    /// Returns the bytes of the transport header at the start of `transport`.
    fn header_len(transport: &[u8]) -> Option<usize>;
    /// Patches the header of the segment `transport`, whose checksum field is zero.
    fn patch(transport: &mut [u8], template: &[u8], position: &Position);
}

struct Tcp;

impl Transport for Tcp {
    const PROTOCOL: u8 = ip::TCP;
    const CHECKSUM_AT: usize = 16;

    fn header_len(transport: &[u8]) -> Option<usize> {
        let len = usize::from(transport.get(12)? >> 4) * 4;
        (len >= 20 && len <= transport.len()).then_some(len)
    }

    fn patch(transport: &mut [u8], template: &[u8], position: &Position) {
        let sequence = u32::from_be_bytes([template[4], template[5], template[6], template[7]]);
        let sequence = sequence.wrapping_add(position.payload_offset as u32);
        transport[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !position.is_last {
            transport[13] &= !(TCP_FIN | TCP_PSH);
        }
        if !position.is_first {
            transport[13] &= !TCP_CWR;
        }
    }
}

struct Udp;

impl Transport for Udp {
    const PROTOCOL: u8 = ip::UDP;
    const CHECKSUM_AT: usize = 6;

    fn header_len(transport: &[u8]) -> Option<usize> {
        (transport.len() >= 8).then_some(8)
    }

    fn patch(transport: &mut [u8], _template: &[u8], _position: &Position) {
        let len = transport.len() as u16;
        transport[4..6].copy_from_slice(&len.to_be_bytes());
    }
}

fn split_with<T: Transport>(
    buffer: &mut [u8],
    header: &IpHeader,
    segment_size: u16,
    mtu: usize,
    seal: &mut impl FnMut(&[u8]) -> bool,
) -> Result<(), DropReason> {
    let malformed = DropReason::MalformedPacket;
    let total = header.total_len;
    let (protocol, transport) = ip::transport(&buffer[..total], header).ok_or(malformed)?;
    let transport_len = T::header_len(&buffer[transport..total]).ok_or(malformed)?;
    let headers_len = transport + transport_len;
    if protocol != T::PROTOCOL || segment_size == 0 || headers_len > MAX_HEADERS || header.is_fragment {
        return Err(malformed);
    }
    let mut template = [0; MAX_HEADERS];
    let template = &mut template[..headers_len];
    template.copy_from_slice(&buffer[..headers_len]);
    let checksum = transport + T::CHECKSUM_AT;
    template[checksum..checksum + 2].fill(0);
    let is_ipv4 = template[0] >> 4 == 4;
    let id = u16::from_be_bytes([template[4], template[5]]);
    // What is the same in the checksums of all segments is summed once. An IPv4 header differs in its length
    // and its ID alone.
    let pseudo = ip::pseudo_header_sum(&template[ip::address_range(template[0])], protocol, 0);
    let mut same = 0;
    if is_ipv4 {
        template[2..6].fill(0);
        template[10..12].fill(0);
        same = ip::checksum_add(0, &template[..header.header_len]);
    }

    let payload_len = total - headers_len;
    let segment_size = usize::from(segment_size);
    let count = payload_len.div_ceil(segment_size).max(1);
    for index in 0..count {
        let payload_offset = index * segment_size;
        let payload = segment_size.min(payload_len - payload_offset);
        let len = headers_len + payload;
        // The headers go right before the payload: at the start of the packet for the first segment.
        let start = payload_offset;
        let segment = &mut buffer[start..start + len];
        segment[..headers_len].copy_from_slice(template);
        if is_ipv4 {
            let (len, id) = (len as u16, id.wrapping_add(index as u16));
            let sum = !ip::fold(same + u64::from(len) + u64::from(id));
            segment[2..4].copy_from_slice(&len.to_be_bytes());
            segment[4..6].copy_from_slice(&id.to_be_bytes());
            segment[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            segment[4..6].copy_from_slice(&((len - ip::IPV6_HEADER) as u16).to_be_bytes());
        }
        let position = Position { payload_offset, is_first: index == 0, is_last: index + 1 == count };
        T::patch(&mut segment[transport..], &template[transport..], &position);
        let sum = !ip::fold(ip::checksum_add(pseudo + (len - transport) as u64, &segment[transport..]));
        let sum = if sum == 0 && protocol == ip::UDP { 0xffff } else { sum };
        segment[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
        if !seal_padded(buffer, start, len, mtu, seal) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::TAILROOM;

    /// The segments of `packet`, without their padding, and the padded lengths.
    fn split_all(
        packet: &[u8],
        offload: Offload,
        mtu: usize,
    ) -> Result<(Vec<Vec<u8>>, Vec<usize>), DropReason> {
        let mut buffer = packet.to_vec();
        buffer.resize(packet.len() + TAILROOM, 0xee);
        let header = IpHeader::parse(packet).ok_or(DropReason::MalformedPacket)?;
        let (mut segments, mut padded) = (Vec::new(), Vec::new());
        let mut packet = PacketMut::new(&mut buffer, packet.len(), offload).unwrap();
        split(&mut packet, &header, mtu, |segment| {
            padded.push(segment.len());
            let len = IpHeader::parse(segment).unwrap().total_len;
            assert!(segment[len..].iter().all(|byte| *byte == 0), "padding is zero");
            segments.push(segment[..len].to_vec());
            true
        })?;
        Ok((segments, padded))
    }

    fn tcp_v4(payload: usize, flags: u8) -> Vec<u8> {
        let total = 20 + 32 + payload;
        let mut packet = vec![0; total];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        packet[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
        packet[8] = 64;
        packet[9] = ip::TCP;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[20..24].copy_from_slice(&[0x1f, 0x90, 0x00, 0x50]);
        packet[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
        packet[32] = 8 << 4;
        packet[33] = flags;
        for (i, byte) in packet[52..].iter_mut().enumerate() {
            *byte = (i * 7 + i / 256) as u8;
        }
        packet
    }

    fn assert_checksums(segment: &[u8]) {
        let header = IpHeader::parse(segment).unwrap();
        if segment[0] >> 4 == 4 {
            assert_eq!(ip::fold(ip::checksum_add(0, &segment[..header.header_len])), 0xffff);
        }
        let (protocol, at) = ip::transport(segment, &header).unwrap();
        let sum =
            ip::pseudo_header_sum(&segment[ip::address_range(segment[0])], protocol, segment.len() - at);
        assert_eq!(ip::fold(ip::checksum_add(sum, &segment[at..])), 0xffff);
    }

    #[test]
    fn a_tcp_super_packet_becomes_what_the_kernel_would_have_sent() {
        let packet = tcp_v4(3000, TCP_FIN | TCP_PSH | TCP_CWR | 0x10);
        let offload = Offload::TcpSegmentation { segment_size: 1368 };
        let (segments, padded) = split_all(&packet, offload, 1420).unwrap();
        assert_eq!(segments.iter().map(Vec::len).collect::<Vec<_>>(), [1420, 1420, 316]);
        assert_eq!(padded, [1420, 1420, 320]);
        let flags: Vec<u8> = segments.iter().map(|segment| segment[33]).collect();
        assert_eq!(flags, [TCP_CWR | 0x10, 0x10, TCP_FIN | TCP_PSH | 0x10]);
        let sequences: Vec<u32> = segments
            .iter()
            .map(|segment| u32::from_be_bytes(*segment[24..].first_chunk().unwrap()))
            .collect();
        assert_eq!(sequences, [u32::MAX, 1367, 2735]);
        let ids: Vec<u16> = segments.iter().map(|s| u16::from_be_bytes([s[4], s[5]])).collect();
        assert_eq!(ids, [0xfffe, 0xffff, 0]);
        let payload: Vec<u8> = segments.iter().flat_map(|segment| segment[52..].to_vec()).collect();
        assert_eq!(payload, packet[52..]);
        for segment in &segments {
            assert_checksums(segment);
        }
    }

    #[test]
    fn padding_of_a_middle_segment_leaves_the_payload_behind_it_alone() {
        let packet = tcp_v4(2500, 0x10);
        let offload = Offload::TcpSegmentation { segment_size: 1001 };
        let (segments, padded) = split_all(&packet, offload, 1420).unwrap();
        assert_eq!(padded, [1056, 1056, 560]);
        let payload: Vec<u8> = segments.iter().flat_map(|segment| segment[52..].to_vec()).collect();
        assert_eq!(payload, packet[52..]);
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let mut packet = tcp_v4(100, 0x10);
        let pseudo = ip::pseudo_header_sum(&packet[12..20], ip::TCP, packet.len() - 20);
        packet[36..38].copy_from_slice(&ip::fold(pseudo).to_be_bytes());
        ip::write_ipv4_checksum(&mut packet, 20);
        let (segments, _) = split_all(&packet, Offload::Checksum { start: 20, offset: 16 }, 1420).unwrap();
        assert_checksums(&segments[0]);
    }

    #[test]
    fn headers_of_a_super_packet_may_have_256_bytes() {
        // IPv6, destination options of 184 bytes, and TCP with its options.
        let split = |tcp_header: usize| {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
            packet.extend([0xfd; 32]);
            packet.extend([ip::TCP, 22]);
            packet.resize(40 + 184 + 12, 0);
            packet.push((tcp_header as u8 / 4) << 4);
            packet.resize(40 + 184 + tcp_header + 20, 0);
            let len = packet.len() as u16 - 40;
            packet[4..6].copy_from_slice(&len.to_be_bytes());
            let segments = split_all(&packet, Offload::TcpSegmentation { segment_size: 10 }, 1420);
            segments.map(|(segments, _)| segments.iter().map(Vec::len).collect::<Vec<_>>())
        };
        assert_eq!(split(28), Ok(vec![262, 262]));
        assert_eq!(split(32), Ok(vec![266, 266]));
        assert_eq!(split(36), Err(DropReason::MalformedPacket));
    }

    #[test]
    fn metadata_that_does_not_fit_the_packet_is_refused() {
        let packet = tcp_v4(100, 0x10);
        for offload in [
            Offload::Checksum { start: 150, offset: 16 },
            Offload::Checksum { start: 20, offset: u16::MAX },
            Offload::Checksum { start: 20, offset: 131 },
            Offload::UdpSegmentation { segment_size: 10 },
            Offload::TcpSegmentation { segment_size: 0 },
        ] {
            assert_eq!(split_all(&packet, offload, 1420), Err(DropReason::MalformedPacket), "{offload:?}");
        }
        let mut packet = tcp_v4(100, 0x10);
        packet[32] = 15 << 4;
        let short = &mut packet[..60];
        short[2..4].copy_from_slice(&60u16.to_be_bytes());
        let offload = Offload::TcpSegmentation { segment_size: 10 };
        assert_eq!(split_all(short, offload, 1420), Err(DropReason::MalformedPacket));
    }
}
