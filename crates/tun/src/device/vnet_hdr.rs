//! The virtio-net header in front of every packet on a TUN descriptor (Virtual I/O Device 1.2, section
//! 5.1.6): decoded by the readers, encoded by the writers.

use weft_tunnel::Offload;
use weft_tunnel::ip::{self, IpHeader};

/// Bytes of the legacy header, which has no `num_buffers`.
pub(crate) const VNET_HDR: usize = 10;

const FLAG_NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Bytes of a TCP header without options, the offset of its checksum field, and the same for UDP.
const TCP_HEADER: usize = 20;
const TCP_CHECKSUM: usize = 16;
const UDP_HEADER: usize = 8;
const UDP_CHECKSUM: usize = 6;

/// A header that does not fit its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Returns the offload work that is left on `packet`, and the number of packets that it is on the wire.
/// Ignores `hdr_len`, which is wrong for forwarded packets.
pub(crate) fn decode(header: &[u8; VNET_HDR], packet: &[u8]) -> Result<(Offload, u64), Malformed> {
    let [flags, gso_type, _, _, rest @ ..] = *header;
    let [size_0, size_1, start_0, start_1, offset_0, offset_1] = rest;
    let gso_size = u16::from_ne_bytes([size_0, size_1]);
    let start = u16::from_ne_bytes([start_0, start_1]);
    let offset = u16::from_ne_bytes([offset_0, offset_1]);

    let ip = IpHeader::parse(packet).ok_or(Malformed)?;
    if ip.total_len != packet.len() {
        return Err(Malformed);
    }
    let gso_type = gso_type & !GSO_ECN;
    if gso_type == GSO_NONE {
        if flags & FLAG_NEEDS_CSUM == 0 {
            return Ok((Offload::None, 1));
        }
        let end = usize::from(start) + usize::from(offset) + 2;
        let fits = usize::from(start) >= ip.header_len && end <= packet.len();
        return if fits { Ok((Offload::Checksum { start, offset }, 1)) } else { Err(Malformed) };
    }

    if gso_size == 0 || ip.is_fragment {
        return Err(Malformed);
    }
    // The checksum of a super-packet starts at its transport header. A super-packet with a complete checksum
    // (of a driver's hardware GRO, forwarded) has no `csum_start`: it is accepted only if the transport
    // header directly follows the IP header.
    let is_v4 = packet[0] >> 4 == 4;
    let partial = flags & FLAG_NEEDS_CSUM != 0;
    let transport = if partial { usize::from(start) } else { ip.header_len };
    let sum_is_at = |field: usize| !partial || usize::from(offset) == field;
    let is_protocol = |protocol| partial || ip.protocol == protocol;
    let transport_fits = if is_v4 { transport == ip.header_len } else { transport >= ip.header_len };
    if !transport_fits {
        return Err(Malformed);
    }
    let (header_end, offload) = match gso_type {
        GSO_TCPV4 | GSO_TCPV6
            if (gso_type == GSO_TCPV4) == is_v4 && sum_is_at(TCP_CHECKSUM) && is_protocol(ip::TCP) =>
        {
            let data_offset = packet.get(transport + 12).ok_or(Malformed)? >> 4;
            let header_len = usize::from(data_offset) * 4;
            if header_len < TCP_HEADER {
                return Err(Malformed);
            }
            (transport + header_len, Offload::TcpSegmentation { segment_size: gso_size })
        }
        GSO_UDP_L4 if sum_is_at(UDP_CHECKSUM) && is_protocol(ip::UDP) => {
            (transport + UDP_HEADER, Offload::UdpSegmentation { segment_size: gso_size })
        }
        _ => return Err(Malformed),
    };
    let payload = packet.len().checked_sub(header_end).filter(|payload| *payload > 0).ok_or(Malformed)?;
    Ok((offload, payload.div_ceil(usize::from(gso_size)) as u64))
}

/// Returns a header whose positions count from another place, `by` bytes before: a link header.
#[cfg(any(target_os = "linux", test))]
pub(crate) fn moved(header: &[u8; VNET_HDR], by: i16) -> [u8; VNET_HDR] {
    let mut moved = *header;
    let mut move_at = |at: usize| {
        let position = u16::from_ne_bytes([header[at], header[at + 1]]).wrapping_add_signed(by);
        moved[at..at + 2].copy_from_slice(&position.to_ne_bytes());
    };
    // The length of the headers, and where the checksum starts.
    if header[1] != GSO_NONE {
        move_at(2);
    }
    if header[0] & FLAG_NEEDS_CSUM != 0 {
        move_at(6);
    }
    moved
}

/// The virtio header of a packet with no offload work left.
pub(crate) const NOTHING_TO_DO: [u8; VNET_HDR] = [0; VNET_HDR];

/// Returns the virtio header of a TCP or UDP super-packet with a partial checksum.
pub(crate) fn encode_super_packet(
    is_v4: bool,
    protocol: u8,
    header_len: u16,
    transport: u16,
    segment_size: u16,
) -> [u8; VNET_HDR] {
    let (gso_type, checksum) = match (protocol, is_v4) {
        (ip::UDP, _) => (GSO_UDP_L4, UDP_CHECKSUM),
        (_, true) => (GSO_TCPV4, TCP_CHECKSUM),
        (_, false) => (GSO_TCPV6, TCP_CHECKSUM),
    };
    let mut header = NOTHING_TO_DO;
    header[0] = FLAG_NEEDS_CSUM;
    header[1] = gso_type;
    header[2..4].copy_from_slice(&header_len.to_ne_bytes());
    header[4..6].copy_from_slice(&segment_size.to_ne_bytes());
    header[6..8].copy_from_slice(&transport.to_ne_bytes());
    header[8..10].copy_from_slice(&(checksum as u16).to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tcp(payload: usize) -> Vec<u8> {
        let mut packet = vec![0; 40 + payload];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(40 + payload as u16).to_be_bytes());
        packet[9] = ip::TCP;
        packet[32] = 0x50;
        packet
    }

    fn super_header(gso_type: u8, gso_size: u16, start: u16, offset: u16) -> [u8; VNET_HDR] {
        let mut header = encode_super_packet(true, ip::TCP, 0, start, gso_size);
        header[1] = gso_type;
        header[8..].copy_from_slice(&offset.to_ne_bytes());
        header
    }

    #[test]
    fn a_super_packet_counts_its_segments() {
        let offload = Offload::TcpSegmentation { segment_size: 1000 };
        assert_eq!(decode(&super_header(1, 1000, 20, 16), &tcp(2001)), Ok((offload, 3)));
        assert_eq!(decode(&super_header(0x81, 1000, 20, 16), &tcp(2000)), Ok((offload, 2)));
    }

    #[test]
    fn positions_of_work_that_is_left_move_with_the_link_header() {
        let header = super_header(1, 1000, 20, 16);
        let moved = moved(&header, 14);
        assert_eq!((&moved[2..4], &moved[6..8]), (&14_u16.to_ne_bytes()[..], &34_u16.to_ne_bytes()[..]));
        assert_eq!(super::moved(&moved, -14), header);
        assert_eq!(super::moved(&NOTHING_TO_DO, 14), NOTHING_TO_DO);
        // A checksum that starts before the packet fits no packet.
        let wrong = super::moved(&super_header(0, 0, 13, 16), -14);
        assert_eq!(decode(&wrong, &tcp(0)), Err(Malformed));
    }

    #[test]
    fn a_plain_packet_has_nothing_left_to_do() {
        assert_eq!(decode(&NOTHING_TO_DO, &tcp(5)), Ok((Offload::None, 1)));
    }

    #[test]
    fn headers_that_do_not_fit_are_malformed() {
        for (gso_type, size, start, offset) in [
            (1, 0, 20, 16),
            (4, 1000, 20, 16),
            (3, 1000, 20, 6),
            (2, 1000, 20, 16),
            (1, 1000, 24, 16),
            (1, 1000, 20, 6),
            (5, 1000, 20, 16),
            (1, 1000, 60_000, 16),
            (1, 1000, 0, 16),
        ] {
            assert_eq!(decode(&super_header(gso_type, size, start, offset), &tcp(2001)), Err(Malformed));
        }
        assert_eq!(decode(&super_header(1, 1000, 20, 16), &tcp(0)), Err(Malformed));
        assert_eq!(decode(&super_header(1, 1000, 20, 16), &tcp(2001)[..2000]), Err(Malformed));
    }

    #[test]
    fn a_checksum_outside_the_packet_is_malformed() {
        for (start, offset) in [(20, 19), (20, 0xffff), (0xffff, 0xffff), (10, 6)] {
            assert_eq!(decode(&super_header(0, 0, start, offset), &tcp(0)), Err(Malformed));
        }
        let fits = Offload::Checksum { start: 20, offset: 16 };
        assert_eq!(decode(&super_header(0, 0, 20, 16), &tcp(0)), Ok((fits, 1)));
    }

    proptest! {
        #[test]
        fn any_header_and_packet_decodes_or_is_malformed(
            header in any::<[u8; VNET_HDR]>(), packet in proptest::collection::vec(any::<u8>(), 0..100)
        ) {
            let _ = decode(&header, &packet);
            let mut tcp = tcp(packet.len());
            tcp[20..].fill(packet.first().copied().unwrap_or(0));
            let _ = decode(&header, &tcp);
        }
    }
}
