//! Packets of one TCP or UDP flow, as read from or written to a TUN.

use weft_tunnel::ip;
use weft_tunnel::{Offload, PacketMut, TAILROOM};

/// The MTU of the tunnel in bytes.
pub(super) const MTU: usize = 1420;
/// Length of an IPv4 and a TCP header without options.
const TCP_HEADERS: usize = 40;
/// TCP payload of a full packet in bytes.
pub(super) const MSS: u16 = (MTU - TCP_HEADERS) as u16;
/// Segments of a super-packet: as many as fit 65,535 bytes.
pub(super) const SEGMENTS: usize = 47;

/// Creates a TCP packet over IPv4 with `payload` bytes of data from 10.0.0.1 to 10.0.0.2, with complete
/// checksums.
pub(super) fn tcp(port: u16, sequence: u32, payload: usize) -> Vec<u8> {
    let mut packet = headers(ip::TCP, port, TCP_HEADERS + payload);
    packet[24..28].copy_from_slice(&sequence.to_be_bytes());
    packet[32] = 5 << 4;
    packet[33] = 0x10;
    complete(packet, 36)
}

/// Creates a UDP packet over IPv4 of `len` bytes, with complete checksums.
pub(super) fn udp(port: u16, len: usize) -> Vec<u8> {
    let mut packet = headers(ip::UDP, port, len);
    packet[24..26].copy_from_slice(&((len - 20) as u16).to_be_bytes());
    complete(packet, 26)
}

fn headers(protocol: u8, port: u16, len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
    packet[..ip::IPV4_HEADER].fill(0);
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[6] = 0x40;
    packet[8] = 64;
    packet[9] = protocol;
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..24].copy_from_slice(&5001_u16.to_be_bytes());
    packet
}

fn complete(mut packet: Vec<u8>, checksum: usize) -> Vec<u8> {
    ip::write_ipv4_checksum(&mut packet, ip::IPV4_HEADER);
    packet[checksum..checksum + 2].fill(0);
    let transport = &packet[ip::IPV4_HEADER..];
    let sum = ip::pseudo_header_sum(&packet[12..20], packet[9], transport.len());
    let sum = !ip::fold(ip::checksum_add(sum, transport));
    packet[checksum..checksum + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A packet as in a reader's slab. Splitting overwrites its headers; [`Self::restore`] restores them.
pub(super) struct Outbound {
    buffer: Vec<u8>,
    headers: Vec<u8>,
    offload: Offload,
}

impl Outbound {
    pub(super) fn new(packet: Vec<u8>, offload: Offload) -> Self {
        let headers = packet[..packet.len().min(TCP_HEADERS)].to_vec();
        let mut buffer = packet;
        buffer.resize(buffer.len() + TAILROOM, 0);
        Self { buffer, headers, offload }
    }

    /// Creates a TCP super-packet of the maximum number of full segments.
    pub(super) fn tcp_super_packet() -> Self {
        let payload = usize::from(MSS) * SEGMENTS;
        Self::new(tcp(40_000, 1, payload), Offload::TcpSegmentation { segment_size: MSS })
    }

    pub(super) fn restore(&mut self) {
        self.buffer[..self.headers.len()].copy_from_slice(&self.headers);
    }

    /// Returns the packet, never `None`.
    pub(super) fn packet(&mut self) -> Option<PacketMut<'_>> {
        let len = self.buffer.len() - TAILROOM;
        PacketMut::new(&mut self.buffer, len, self.offload)
    }
}
