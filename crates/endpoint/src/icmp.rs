//! ICMP (RFC 792, RFC 4443): answers echo requests, reads errors about what was sent, and makes errors about
//! datagrams that nobody takes.

use weft_tunnel::ip;

use crate::packet::{ICMP, ICMPV6, Packet, header_len, write_header};
use crate::secret::Tuple;

/// Bytes of a header, the quoted packet follows.
const HEADER: usize = 8;
/// Bytes that an error may have in all: what fits into the least MTU (RFC 1812, section 4.3.2.3; RFC 4443,
/// section 2.4).
const MAX_ERROR: [usize; 2] = [576, 1280];

/// What a router or the peer says about a packet of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// It is longer than this.
    TooBig(u16),
    /// It cannot be delivered. True: the host is there, and nobody takes it.
    Unreachable(bool),
}

/// A message that concerns this endpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Send this packet.
    Answer(Box<[u8]>),
    /// Something about a packet of this flow and protocol; of TCP with its sequence number.
    Error { error: PathError, tuple: Tuple, protocol: u8, seq: u32 },
}

/// Reads a message whose checksum is right.
pub(crate) fn read(packet: &Packet<'_>) -> Option<Message> {
    let is_ipv4 = packet.protocol == ICMP;
    let header = packet.payload.first_chunk::<HEADER>()?;
    let mtu = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    let error = match (is_ipv4, header[0], header[1]) {
        (true, 8, 0) => return echo(packet, 0),
        (false, 128, 0) => return echo(packet, 129),
        // An old router says 0 (RFC 1191, section 5); IPv4 takes 576 at least in practice, IPv6 1,280.
        (true, 3, 4) => PathError::TooBig((mtu as u16).max(576)),
        (false, 2, _) => PathError::TooBig(mtu.clamp(1280, 65_535) as u16),
        (true, 3, code) => PathError::Unreachable(matches!(code, 2 | 3)),
        (false, 1, code) => PathError::Unreachable(code == 4),
        _ => return None,
    };
    let (tuple, protocol, seq) = quoted(packet.payload.get(HEADER..)?)?;
    (packet.destination == tuple.local).then_some(Message::Error { error, tuple, protocol, seq })
}

/// Reads the flow of a quoted packet, which this end sent; it may be cut after 8 bytes of its payload.
fn quoted(bytes: &[u8]) -> Option<(Tuple, u8, u32)> {
    let (source, destination, protocol, at) = match bytes.first()? >> 4 {
        4 => {
            let header = bytes.first_chunk::<20>()?;
            let address = |at: usize| -> Option<[u8; 4]> { header.get(at..at + 4)?.try_into().ok() };
            (address(12)?.into(), address(16)?.into(), header[9], usize::from(header[0] & 15) * 4)
        }
        6 => {
            let header = bytes.first_chunk::<40>()?;
            let address = |at: usize| -> Option<[u8; 16]> { header.get(at..at + 16)?.try_into().ok() };
            (address(8)?.into(), address(24)?.into(), header[6], 40)
        }
        _ => return None,
    };
    let [a, b, c, d, seq @ ..] = *bytes.get(at..)?.first_chunk::<8>()?;
    let tuple = Tuple {
        local: source,
        peer: destination,
        local_port: u16::from_be_bytes([a, b]),
        peer_port: u16::from_be_bytes([c, d]),
    };
    Some((tuple, protocol, u32::from_be_bytes(seq)))
}

fn echo(packet: &Packet<'_>, kind: u8) -> Option<Message> {
    let rest = packet.payload.get(4..)?;
    build(packet, [kind, 0, 0, 0], &[rest]).map(Message::Answer)
}

/// Returns the error "port unreachable" about a datagram.
pub(crate) fn port_unreachable(packet: &Packet<'_>) -> Option<Box<[u8]>> {
    let kind = if packet.source.is_ipv4() { [3, 3, 0, 0] } else { [1, 4, 0, 0] };
    let room = MAX_ERROR[usize::from(packet.source.is_ipv6())] - header_len(packet.source) - HEADER;
    let quoted = packet.bytes.get(..room).unwrap_or(packet.bytes);
    build(packet, kind, &[&[0; 4], quoted])
}

/// Makes a message to the source of `packet`.
fn build(packet: &Packet<'_>, kind: [u8; 4], parts: &[&[u8]]) -> Option<Box<[u8]>> {
    let ends = (packet.destination, packet.source);
    let protocol = if packet.source.is_ipv4() { ICMP } else { ICMPV6 };
    let len = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    let at = header_len(packet.source);
    if at + len > weft_tunnel::MAX_PACKET {
        return None;
    }
    let mut bytes = vec![0; at];
    write_header(&mut bytes, ends, protocol, len, None);
    bytes.extend(kind);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    // ICMP of IPv4 has no pseudo-header.
    let pseudo =
        if packet.source.is_ipv4() { 0 } else { crate::packet::pseudo_header(ends.0, ends.1, protocol, len) };
    let sum = !ip::fold(ip::checksum_add(pseudo, bytes.get(at..)?));
    bytes.get_mut(at + 2..at + 4)?.copy_from_slice(&sum.to_be_bytes());
    Some(bytes.into_boxed_slice())
}

/// Reports whether the checksum of a message is right.
pub(crate) fn has_valid_checksum(packet: &Packet<'_>) -> bool {
    if packet.protocol == ICMP {
        return ip::fold(ip::checksum_add(0, packet.payload)) == 0xffff;
    }
    packet.has_valid_checksum()
}
