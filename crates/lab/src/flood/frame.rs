//! Ethernet frames with a UDP datagram over IPv4 or IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(super) const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const PROTOCOL_UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

pub(super) type Mac = [u8; 6];

/// The fields that all frames of a flood share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    from: Mac,
    to: Mac,
    target: SocketAddr,
}

impl Frame {
    pub(super) fn new(from: Mac, to: Mac, target: SocketAddr) -> Self {
        Self { from, to, target }
    }

    /// Returns the length of the headers before the datagram.
    pub(super) fn headers(&self) -> usize {
        ETHERNET + UDP + if self.target.is_ipv6() { IPV6 } else { IPV4 }
    }

    /// Writes a frame with the source address `source`, and returns its length. `buffer` has room for it.
    pub(super) fn write(&self, source: SocketAddr, datagram: &[u8], buffer: &mut [u8]) -> usize {
        let end = self.headers() + datagram.len();
        let (ethernet, ip) = buffer[..end].split_at_mut(ETHERNET);
        ethernet[..6].copy_from_slice(&self.to);
        ethernet[6..12].copy_from_slice(&self.from);
        let udp_len = ((UDP + datagram.len()) as u16).to_be_bytes();
        let (header, udp) = match (source.ip(), self.target.ip()) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ethernet[12..].copy_from_slice(&ETHERTYPE_IPV6);
                let (header, udp) = ip.split_at_mut(IPV6);
                header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
                header[4..6].copy_from_slice(&udp_len);
                header[6..8].copy_from_slice(&[PROTOCOL_UDP, HOP_LIMIT]);
                header[8..24].copy_from_slice(&from.octets());
                header[24..].copy_from_slice(&to.octets());
                (header, udp)
            }
            (from, to) => {
                ethernet[12..].copy_from_slice(&ETHERTYPE_IPV4);
                let (header, udp) = ip.split_at_mut(IPV4);
                header.fill(0);
                header[0] = 0x45;
                header[2..4].copy_from_slice(&((IPV4 + UDP + datagram.len()) as u16).to_be_bytes());
                // Don't Fragment is set, so that no identification is needed (RFC 6864).
                header[6..10].copy_from_slice(&[0x40, 0, HOP_LIMIT, PROTOCOL_UDP]);
                header[12..16].copy_from_slice(&v4(from).octets());
                header[16..].copy_from_slice(&v4(to).octets());
                let sum = fold(sum(header));
                header[10..12].copy_from_slice(&(!sum).to_be_bytes());
                (header, udp)
            }
        };
        udp[..2].copy_from_slice(&source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.target.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len);
        // The checksum is optional over IPv4 and mandatory over IPv6 (RFC 8200, section 8.1).
        udp[6..8].fill(0);
        udp[UDP..].copy_from_slice(datagram);
        if header.len() == IPV6 {
            let pseudo = sum(&header[8..]) + u64::from(PROTOCOL_UDP) + u64::from(u16::from_be_bytes(udp_len));
            let checksum = match !fold(pseudo + sum(udp)) {
                0 => 0xffff,
                checksum => checksum,
            };
            udp[6..8].copy_from_slice(&checksum.to_be_bytes());
        }
        end
    }
}

/// Returns source, destination and payload of a frame that carries a UDP datagram without IP options.
pub(super) fn parse(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let ip = frame.get(ETHERNET..)?;
    let (header, from, to) = match ip.first()? {
        0x45 => {
            let address = |at: usize| {
                Some(IpAddr::V4(Ipv4Addr::from_bits(u32::from_be_bytes(*ip.get(at..)?.first_chunk()?))))
            };
            (IPV4, address(12)?, address(16)?)
        }
        first if first >> 4 == 6 => {
            let address = |at: usize| {
                Some(IpAddr::V6(Ipv6Addr::from_bits(u128::from_be_bytes(*ip.get(at..)?.first_chunk()?))))
            };
            (IPV6, address(8)?, address(24)?)
        }
        _ => return None,
    };
    let protocol = *ip.get(if header == IPV4 { 9 } else { 6 })?;
    let udp = ip.get(header..).filter(|_| protocol == PROTOCOL_UDP)?;
    let word = |at: usize| Some(u16::from_be_bytes(*udp.get(at..)?.first_chunk()?));
    // A socket may have truncated the frame.
    let contents = udp.get(UDP..usize::from(word(4)?).min(udp.len()))?;
    Some((SocketAddr::new(from, word(0)?), SocketAddr::new(to, word(2)?), contents))
}

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(address) => address,
        // Sources and target of a flood are of one family, so this does not occur.
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    }
}

/// Returns the ones' complement sum of the 16-bit words (RFC 1071), not yet folded.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_be_bytes(last))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
