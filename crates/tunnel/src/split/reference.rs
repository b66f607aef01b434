//! Compares splitting with a naive splitter that builds each packet from scratch, and with the original
//! packet.

use proptest::prelude::*;

use super::*;
use crate::packet::TAILROOM;

/// The parts of a super-packet.
#[derive(Clone, Debug)]
struct Parts {
    is_ipv4: bool,
    /// IPv4 options, or IPv6 extension headers, each with the protocol number of the header that follows.
    between: Vec<u8>,
    first_protocol: u8,
    id: u16,
    dscp_and_ecn: u8,
    addresses: [u8; 32],
    is_tcp: bool,
    sequence: u32,
    flags: u8,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
}

impl Parts {
    /// The bytes of a packet that carries `payload`, with every length and checksum right.
    fn packet(&self, id: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut transport = vec![0x30, 0x39, 0x00, 0x50];
        let checksum_at = if self.is_tcp {
            transport.extend(sequence.to_be_bytes());
            transport.extend([0xde, 0xad, 0xbe, 0xef]);
            transport.push(((20 + self.tcp_options.len()) * 4) as u8);
            transport.push(flags);
            transport.extend([0x12, 0x34, 0, 0, 0x56, 0x78]);
            transport.extend(&self.tcp_options);
            16
        } else {
            transport.extend((8 + payload.len() as u16).to_be_bytes());
            transport.extend([0, 0]);
            6
        };
        transport.extend(payload);
        let protocol = if self.is_tcp { ip::TCP } else { ip::UDP };
        let addresses = if self.is_ipv4 { &self.addresses[..8] } else { &self.addresses[..] };
        let mut pseudo = addresses.to_vec();
        pseudo.extend((transport.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        pseudo.extend(&transport);
        let mut sum = checksum(&pseudo);
        if sum == 0 && !self.is_tcp {
            sum = 0xffff;
        }
        transport[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());

        let mut packet = Vec::new();
        if self.is_ipv4 {
            let header_len = 20 + self.between.len();
            packet.extend([0x40 + (header_len / 4) as u8, self.dscp_and_ecn]);
            packet.extend(((header_len + transport.len()) as u16).to_be_bytes());
            packet.extend(id.to_be_bytes());
            packet.extend([0x40, 0, 64, protocol, 0, 0]);
            packet.extend(addresses);
            packet.extend(&self.between);
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            packet.extend([0x60 | (self.dscp_and_ecn >> 4), (self.dscp_and_ecn << 4) | 3, 2, 1]);
            packet.extend(((self.between.len() + transport.len()) as u16).to_be_bytes());
            packet.extend([self.first_protocol, 64]);
            packet.extend(addresses);
            packet.extend(&self.between);
        }
        packet.extend(transport);
        packet
    }

    fn whole_complete(&self) -> Vec<u8> {
        self.packet(self.id, self.sequence, self.flags, &self.payload)
    }

    fn transport_at(&self) -> usize {
        self.between.len() + if self.is_ipv4 { 20 } else { 40 }
    }

    /// The super-packet as a kernel hands it over, with a partial checksum.
    fn whole(&self) -> Vec<u8> {
        let mut packet = self.whole_complete();
        self.make_partial(&mut packet);
        packet
    }

    fn checksum_offset(&self) -> usize {
        if self.is_tcp { 16 } else { 6 }
    }

    fn make_partial(&self, packet: &mut [u8]) {
        let at = self.transport_at();
        let mut pseudo = if self.is_ipv4 { packet[12..20].to_vec() } else { packet[8..40].to_vec() };
        pseudo.extend(((packet.len() - at) as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, if self.is_tcp { ip::TCP } else { ip::UDP }]);
        let field = at + self.checksum_offset();
        packet[field..field + 2].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
    }

    /// The packets that a kernel would have sent instead.
    fn expected(&self, segment_size: usize) -> Vec<Vec<u8>> {
        let mut chunks: Vec<&[u8]> = self.payload.chunks(segment_size).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let last = chunks.len() - 1;
        let packet = |(i, chunk): (usize, &&[u8])| {
            let mut flags = self.flags;
            if i != last {
                flags &= !(TCP_FIN | TCP_PSH);
            }
            if i != 0 {
                flags &= !TCP_CWR;
            }
            let sequence = self.sequence.wrapping_add((i * segment_size) as u32);
            self.packet(self.id.wrapping_add(i as u16), sequence, flags, chunk)
        };
        chunks.iter().enumerate().map(packet).collect()
    }
}

/// The Internet checksum by the book (RFC 1071), word by word.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) * 256 + word.get(1).map_or(0, |low| u32::from(*low));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !(sum as u16)
}

/// Hop-by-hop, routing and destination options: their protocol number, and their length in words of 8 bytes
/// beyond the first.
fn extensions() -> impl Strategy<Value = Vec<(u8, u8)>> {
    let kinds = prop::sample::select(vec![0_u8, 43, 60]);
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec((kinds, 0..4_u8), 1..4)]
}

fn parts() -> impl Strategy<Value = Parts> {
    let ipv4_options = prop_oneof![2 => Just(0_usize), 1 => 1..=10_usize];
    let tcp_options = prop_oneof![1 => Just(0_usize), 2 => Just(3), 1 => 1..=10_usize];
    let len = prop_oneof![1 => 0..40_usize, 4 => 0..6000_usize, 1 => 6000..65_000_usize];
    let ip = (any::<bool>(), ipv4_options, extensions(), any::<u16>(), any::<u8>(), any::<[u8; 32]>());
    let transport = (any::<bool>(), any::<u32>(), any::<u8>(), tcp_options);
    (ip, transport, len, any::<u8>()).prop_map(|(ip, transport, len, salt)| {
        let (is_ipv4, ipv4_options, extensions, id, dscp_and_ecn, addresses) = ip;
        let (is_tcp, sequence, flags, tcp_options) = transport;
        let protocol = if is_tcp { ip::TCP } else { ip::UDP };
        let mut between = vec![1; ipv4_options * 4];
        let mut first_protocol = protocol;
        if !is_ipv4 {
            between.clear();
            first_protocol = extensions.first().map_or(protocol, |(kind, _)| *kind);
            for (i, (_, words)) in extensions.iter().enumerate() {
                between.extend([extensions.get(i + 1).map_or(protocol, |(kind, _)| *kind), *words]);
                between.extend(std::iter::repeat_n(salt, 6 + 8 * usize::from(*words)));
            }
        }
        let tcp_options = vec![salt; tcp_options * 4];
        let headers = between.len() + tcp_options.len() + 60;
        let payload = (0..len.min(65_535 - headers)).map(|i| (i * 31 + i / 256) as u8 ^ salt).collect();
        Parts {
            is_ipv4,
            between,
            first_protocol,
            id,
            dscp_and_ecn,
            addresses,
            is_tcp,
            sequence,
            flags,
            tcp_options,
            payload,
        }
    })
}

/// Returns what `split` passes on: each packet, and the number of padding bytes behind it.
fn split_all(packet: &[u8], offload: Offload, mtu: usize) -> Vec<(Vec<u8>, usize)> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + TAILROOM, 0xee);
    let header = IpHeader::parse(packet).unwrap();
    let mut packet = PacketMut::new(&mut buffer, packet.len(), offload).unwrap();
    let announced = packet.segments();
    let mut packets = Vec::new();
    split(&mut packet, &header, mtu, |segment| {
        let len = IpHeader::parse(segment).unwrap().total_len;
        assert!(segment[len..].iter().all(|byte| *byte == 0), "padding is zero");
        assert!(segment.len() <= mtu.max(len), "padding stays within the MTU");
        assert!(segment.len() % PADDING == 0 || segment.len() == mtu.max(len));
        packets.push((segment[..len].to_vec(), segment.len() - len));
        true
    })
    .unwrap();
    assert_eq!(announced, packets.len() as u64, "as many as were announced");
    packets
}

fn bytes_of(packets: Vec<(Vec<u8>, usize)>) -> Vec<Vec<u8>> {
    packets.into_iter().map(|(packet, _)| packet).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_super_packet_becomes_what_a_naive_splitter_makes_of_it(
        parts in parts(),
        segment_size in prop_oneof![1 => 1..60_u16, 3 => 1..=1500_u16],
        mtu in prop_oneof![Just(1420_usize), 1280..1600_usize],
        behind in prop_oneof![3 => Just(0_usize), 1 => 1..40_usize],
    ) {
        let offload = match parts.is_tcp {
            true => Offload::TcpSegmentation { segment_size },
            false => Offload::UdpSegmentation { segment_size },
        };
        let mut whole = parts.whole();
        // Bytes behind the length in the IP header do not belong to the packet.
        whole.resize(whole.len() + behind, 0xaa);
        let packets = bytes_of(split_all(&whole, offload, mtu));
        prop_assert_eq!(packets, parts.expected(usize::from(segment_size)));
    }

    #[test]
    fn a_partial_checksum_is_completed_whatever_the_headers_are(parts in parts()) {
        let offload = Offload::Checksum {
            start: parts.transport_at() as u16,
            offset: parts.checksum_offset() as u16,
        };
        let mut expected = parts.whole_complete();
        let mut packets = bytes_of(split_all(&parts.whole(), offload, 1420));
        let field = parts.transport_at() + parts.checksum_offset();
        // Zero and 0xffff are the same sum, except where zero means that there is no checksum.
        for packet in packets.iter_mut().chain([&mut expected]) {
            if parts.is_tcp && packet[field..field + 2] == [0xff, 0xff] {
                packet[field..field + 2].fill(0);
            }
        }
        prop_assert_eq!(packets, [expected]);
    }

    #[test]
    fn a_whole_packet_is_left_as_it_is(parts in parts(), mtu in 1280..1600_usize) {
        let packet = parts.whole_complete();
        prop_assert_eq!(bytes_of(split_all(&packet, Offload::None, mtu)), [packet]);
    }

    #[test]
    fn any_bytes_with_any_metadata_are_split_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        version in prop::sample::select(vec![0x45_u8, 0x46, 0x4f, 0x60]),
        claims_all: bool,
        kind in 0..4,
        a in prop_oneof![0..80_u16, any::<u16>()],
        b in prop_oneof![0..80_u16, any::<u16>()],
    ) {
        if let [first, _, high, low, payload_high, payload_low, ..] = &mut bytes[..] {
            *first = version;
            if claims_all {
                (*high, *low, *payload_high, *payload_low) = (0, 0, 0, 0);
            }
        }
        if claims_all && bytes.len() >= 40 {
            let len = bytes.len() as u16;
            if version == 0x60 {
                bytes[4..6].copy_from_slice(&(len - 40).to_be_bytes());
            } else {
                bytes[2..4].copy_from_slice(&len.to_be_bytes());
                bytes[6..8].fill(0);
                bytes[9] = if kind == 3 { ip::UDP } else { ip::TCP };
            }
        }
        let Some(header) = IpHeader::parse(&bytes) else { return Ok(()) };
        let offload = match kind {
            0 => Offload::None,
            1 => Offload::Checksum { start: a, offset: b },
            2 => Offload::TcpSegmentation { segment_size: a },
            _ => Offload::UdpSegmentation { segment_size: a },
        };
        let len = bytes.len();
        bytes.resize(len + TAILROOM, 0xee);
        let mut packet = PacketMut::new(&mut bytes, len, offload).unwrap();
        let announced = packet.segments();
        let mut handed_out = 0;
        match split(&mut packet, &header, 1420, |_| { handed_out += 1; true }) {
            Ok(()) => prop_assert_eq!(handed_out, announced),
            Err(reason) => {
                prop_assert_eq!(reason, DropReason::MalformedPacket);
                prop_assert_eq!(handed_out, 0, "an error comes before the first packet");
            }
        }
    }
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_written_as_0xffff() {
    for is_ipv4 in [true, false] {
        for between in if is_ipv4 { vec![vec![]] } else { vec![vec![], vec![ip::UDP, 0, 1, 4, 0, 0, 0, 0]] } {
            let mut parts = Parts {
                is_ipv4,
                first_protocol: if between.is_empty() { ip::UDP } else { 60 },
                between,
                id: 0,
                dscp_and_ecn: 0,
                addresses: [9; 32],
                is_tcp: false,
                sequence: 0,
                flags: 0,
                tcp_options: Vec::new(),
                payload: vec![0, 0],
            };
            // The two payload bytes that make the checksum come out as zero.
            let at = parts.transport_at() + 6;
            let packet = parts.whole_complete();
            parts.payload = packet[at..at + 2].to_vec();
            let start = parts.transport_at() as u16;
            let packets = bytes_of(split_all(&parts.whole(), Offload::Checksum { start, offset: 6 }, 1420));
            assert_eq!(packets[0][at..at + 2], [0xff, 0xff]);
            let offload = Offload::UdpSegmentation { segment_size: 1000 };
            let packets = bytes_of(split_all(&parts.whole(), offload, 1420));
            assert_eq!(packets[0][at..at + 2], [0xff, 0xff]);
        }
    }
}
