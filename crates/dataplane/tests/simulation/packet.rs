//! Inner packets that say what they are, so that the receiver can check each of them, and what a kernel makes
//! of several.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weft_tunnel::{Offload, ip};

/// A TCP header with timestamps, as nearly all segments have it.
const TCP_HEADER: usize = 32;
const UDP_HEADER: usize = 8;

/// What payloads are filled with, each from another place.
static FILLING: [u8; 2048] = {
    let (mut filling, mut at) = ([0; 2048], 0);
    while at < filling.len() {
        filling[at] = (at * 7 + at / 256) as u8;
        at += 1;
    }
    filling
};

/// Flags of TCP.
pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const CWR: u8 = 0x80;

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

/// The addresses of a node inside the tunnel.
pub(crate) fn inner_v4(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1)
}

pub(crate) fn inner_v6(node: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1)
}

impl Label {
    /// Bytes of a label, at the start of each payload.
    pub(crate) const BYTES: usize = 24;

    /// Returns a payload of `len` bytes, or as many as the label needs.
    pub(crate) fn payload(&self, len: usize) -> Vec<u8> {
        let mut payload = self.number.to_be_bytes().to_vec();
        for word in [self.from, self.to, self.flow, self.place] {
            payload.extend(word.to_be_bytes());
        }
        let filling = &FILLING[self.number as usize % 256..];
        payload.extend(&filling[..len.saturating_sub(Self::BYTES)]);
        payload
    }

    /// Returns the label of a packet, of which the end may be missing; `None` if it is no packet of a flow.
    pub(crate) fn of(packet: &[u8]) -> Option<Self> {
        let at = headers_of(packet)?;
        let word = |at: usize| Some(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let number = u64::from_be_bytes(*packet.get(at..)?.first_chunk()?);
        let [from, to, flow, place] = [8, 12, 16, 20].map(|offset| word(at + offset));
        Some(Self { number, from: from?, to: to?, flow: flow?, place: place? })
    }
}

/// Returns the bytes of the IP header and the transport protocol of a packet without options.
fn ip_header_of(packet: &[u8]) -> Option<(usize, u8)> {
    match packet.first()? >> 4 {
        4 => Some((ip::IPV4_HEADER, *packet.get(9)?)),
        6 => Some((ip::IPV6_HEADER, *packet.get(6)?)),
        _ => None,
    }
}

/// Returns the bytes of all headers; `None` if it is no packet of a flow.
fn headers_of(packet: &[u8]) -> Option<usize> {
    let (ip_header, protocol) = ip_header_of(packet)?;
    match protocol {
        ip::TCP => Some(ip_header + TCP_HEADER),
        ip::UDP => Some(ip_header + UDP_HEADER),
        _ => None,
    }
}

/// The headers of the next packet of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// TCP or UDP.
    pub(crate) protocol: u8,
    pub(crate) port: u16,
    /// Whether the packets must not be fragmented (DF of IPv4).
    pub(crate) stays_whole: bool,
    /// Whether there is a checksum. It may be left out with UDP over IPv4 alone.
    pub(crate) has_checksum: bool,
    /// Identification of IPv4.
    pub(crate) id: u16,
    pub(crate) sequence: u32,
}

impl Headers {
    /// Returns the bytes of the headers.
    pub(crate) fn len(&self) -> usize {
        let ip_header = if self.source.is_ipv4() { ip::IPV4_HEADER } else { ip::IPV6_HEADER };
        ip_header + if self.protocol == ip::TCP { TCP_HEADER } else { UDP_HEADER }
    }

    /// Returns the packet with this payload and these flags of TCP, and makes these the headers of the one
    /// after it.
    pub(crate) fn next_packet(&mut self, payload: &[u8], flags: u8) -> Vec<u8> {
        let len = (self.len() + payload.len()) as u16;
        let mut packet = Vec::with_capacity(usize::from(len));
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                packet.extend([0x45, 0]);
                packet.extend(len.to_be_bytes().into_iter().chain(self.id.to_be_bytes()));
                packet.extend([u8::from(self.stays_whole) << 6, 0, 64, self.protocol, 0, 0]);
                packet.extend(source.octets().into_iter().chain(destination.octets()));
                ip::write_ipv4_checksum(&mut packet, ip::IPV4_HEADER);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                packet.extend([0x60, 0, 0, 0]);
                packet.extend((len - ip::IPV6_HEADER as u16).to_be_bytes());
                packet.extend([self.protocol, 64]);
                packet.extend(source.octets().into_iter().chain(destination.octets()));
            }
            _ => panic!("addresses of two families"),
        }
        let transport = packet.len();
        packet.extend(self.port.to_be_bytes());
        packet.extend(9_u16.to_be_bytes());
        if self.protocol == ip::TCP {
            packet.extend(self.sequence.to_be_bytes());
            packet.extend([0, 0, 0, 1, (TCP_HEADER as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
            // Two options of no meaning, and timestamps.
            packet.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        } else {
            packet.extend((len - transport as u16).to_be_bytes());
            packet.extend([0, 0]);
        }
        packet.extend(payload);
        if self.has_checksum {
            let sum = !ip::fold(ip::checksum_add(pseudo_header_sum(&packet), &packet[transport..]));
            // With UDP, zero would mean that there is none.
            let sum = if sum == 0 && self.protocol == ip::UDP { 0xffff } else { sum };
            packet[checksum_at(transport, self.protocol)..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        self.id = self.id.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(payload.len() as u32);
        packet
    }
}

/// An answer that a packet is too long for its path (ICMP, ICMPv6).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooBig<'a> {
    /// Of the packet that is answered.
    pub(crate) destination: IpAddr,
    /// Bytes of the longest packet that the path carries.
    pub(crate) mtu: usize,
    pub(crate) label: Label,
    /// The start of the packet, up to what a super-packet has differently from its first segment.
    pub(crate) quoted: &'a [u8],
}

impl<'a> TooBig<'a> {
    /// Returns the answer that a packet from a TUN is, if it is one.
    pub(crate) fn of(packet: &'a [u8]) -> Option<Self> {
        let (at, protocol) = ip_header_of(packet)?;
        let icmp = packet.get(at..)?;
        let mtu = match (protocol, icmp.first_chunk()?) {
            (1, [3, 4]) => usize::from(u16::from_be_bytes(*icmp.get(6..)?.first_chunk()?)),
            (58, [2, 0]) => u32::from_be_bytes(*icmp.get(4..)?.first_chunk()?) as usize,
            _ => return None,
        };
        let sum = match protocol {
            1 => ip::checksum_add(0, icmp),
            _ => ip::checksum_add(pseudo_header_sum(packet), icmp),
        };
        assert_eq!(ip::fold(sum), 0xffff, "an answer with a wrong checksum");
        let quoted = icmp.get(8..)?;
        let (transport, _) = ip_header_of(quoted)?;
        let header = ip::IpHeader::parse(packet)?;
        let (asker, destination) = addresses_of(quoted)?;
        assert_eq!((header.source, header.destination), (destination, asker), "an answer to someone else");
        Some(Self { destination, mtu, label: Label::of(quoted)?, quoted: quoted.get(..transport + 4)? })
    }
}

fn addresses_of(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    Some(if packet.first()? >> 4 == 4 {
        let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
        (address(12)?, address(16)?)
    } else {
        let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
        (address(8)?, address(24)?)
    })
}

fn checksum_at(transport: usize, protocol: u8) -> usize {
    transport + if protocol == ip::TCP { 16 } else { 6 }
}

fn pseudo_header_sum(packet: &[u8]) -> u64 {
    let (transport, protocol) = ip_header_of(packet).unwrap();
    ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], protocol, packet.len() - transport)
}

/// Leaves the checksum of a packet to whoever sends it, as a kernel does: the field has the sum of the
/// pseudo-header. `packet` is what will be sent.
pub(crate) fn leave_checksum(packet: &mut [u8]) -> (Vec<u8>, Offload) {
    let (transport, protocol) = ip_header_of(packet).unwrap();
    let at = checksum_at(transport, protocol);
    if packet[at..at + 2] == [0, 0] {
        // Kernels write the other zero, also with TCP.
        packet[at..at + 2].fill(0xff);
    }
    let mut given = packet.to_vec();
    given[at..at + 2].copy_from_slice(&ip::fold(pseudo_header_sum(packet)).to_be_bytes());
    (given, Offload::Checksum { start: transport as u16, offset: (at - transport) as u16 })
}

/// Returns the super-packet that a kernel gives in place of packets of one size, of which the last may be
/// shorter.
pub(crate) fn join(packets: &[Vec<u8>]) -> (Vec<u8>, Offload) {
    let first = &packets[0];
    let headers = headers_of(first).unwrap();
    let (transport, protocol) = ip_header_of(first).unwrap();
    let mut joined = first.clone();
    packets[1..].iter().for_each(|packet| joined.extend(&packet[headers..]));
    let len = joined.len() as u16;
    if transport == ip::IPV4_HEADER {
        joined[2..4].copy_from_slice(&len.to_be_bytes());
        ip::write_ipv4_checksum(&mut joined, ip::IPV4_HEADER);
    } else {
        joined[4..6].copy_from_slice(&(len - transport as u16).to_be_bytes());
    }
    let segment_size = (first.len() - headers) as u16;
    let offload = if protocol == ip::TCP {
        joined[transport + 13] |= packets[packets.len() - 1][transport + 13];
        Offload::TcpSegmentation { segment_size }
    } else {
        joined[transport + 4..transport + 6].copy_from_slice(&(len - transport as u16).to_be_bytes());
        Offload::UdpSegmentation { segment_size }
    };
    let at = checksum_at(transport, protocol);
    let sum = ip::fold(pseudo_header_sum(&joined)).to_be_bytes();
    joined[at..at + 2].copy_from_slice(&sum);
    (joined, offload)
}
