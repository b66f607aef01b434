//! Inner packets, with their addresses and numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weft_tunnel::ip;

/// The inner addresses of a node.
pub(crate) fn inner_v4(node: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1))
}

pub(crate) fn inner_v6(node: usize) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1))
}

/// Builds a UDP packet with a number in its payload, and a size that depends on the number.
pub(crate) fn numbered(from: usize, to: usize, number: u64) -> Vec<u8> {
    let mut payload = number.to_be_bytes().to_vec();
    payload.resize(8 + (number as usize * 37) % 200, number as u8);
    if number.is_multiple_of(2) {
        udp(inner_v4(from), inner_v4(to), &payload)
    } else {
        udp(inner_v6(from), inner_v6(to), &payload)
    }
}

/// Returns the number in a packet that [`numbered`] made, and checks its checksums.
pub(crate) fn number_of(packet: &[u8]) -> u64 {
    let header = ip::IpHeader::parse(packet).unwrap();
    assert_eq!(header.total_len, packet.len(), "padding was cut off");
    let (protocol, at) = ip::transport(packet, &header).unwrap();
    let pseudo = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], protocol, packet.len() - at);
    assert_eq!(ip::fold(ip::checksum_add(pseudo, &packet[at..])), 0xffff, "checksum");
    u64::from_be_bytes(*packet[at + 8..].first_chunk().unwrap())
}

/// A UDP packet.
pub(crate) fn udp(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut transport = vec![0x1f, 0x90, 0x1f, 0x91, 0, 0, 0, 0];
    transport[4..6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    transport.extend_from_slice(payload);
    packet(source, destination, ip::UDP, transport, 6)
}

/// A TCP packet with the ACK and PSH flags, or a super-packet.
pub(crate) fn tcp(source: IpAddr, destination: IpAddr, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut transport = vec![0; 20];
    transport[..4].copy_from_slice(&[0x1f, 0x90, 0x1f, 0x91]);
    transport[4..8].copy_from_slice(&sequence.to_be_bytes());
    transport[12..14].copy_from_slice(&[5 << 4, 0x18]);
    transport.extend_from_slice(payload);
    packet(source, destination, ip::TCP, transport, 16)
}

fn packet(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    transport: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let mut packet = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0];
            let total = (20 + transport.len()) as u16;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header.extend(source.octets().into_iter().chain(destination.octets()));
            ip::write_ipv4_checksum(&mut header, 20);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header[4..6].copy_from_slice(&(transport.len() as u16).to_be_bytes());
            header.extend(source.octets().into_iter().chain(destination.octets()));
            header
        }
        _ => panic!("addresses of two families"),
    };
    let at = packet.len();
    let pseudo = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], protocol, transport.len());
    packet.extend(transport);
    let sum = !ip::fold(ip::checksum_add(pseudo, &packet[at..]));
    let sum = if sum == 0 { 0xffff } else { sum };
    packet[at + checksum_at..at + checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}
