//! Rebuilds the IP and UDP headers around a datagram, which the kernel adds and removes without showing them.
//!
//! Addresses, ports, length and ECN are real. Time to live, identification and the DF bit are not known, and
//! neither is fragmentation: a datagram is shown whole, as the sockets see it.

use std::net::IpAddr;

use weft_tunnel::ip;

use weft_dataplane::capture::OuterHeader;

const UDP_HEADER: usize = 8;
const LONGEST: usize = ip::IPV6_HEADER + UDP_HEADER;
/// The value that most systems send.
const TIME_TO_LIVE: u8 = 64;

pub(super) struct Headers {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Headers {
    /// Builds headers for a datagram of `len` bytes, of which `kept` are available. The checksum is right
    /// only if `kept` is the whole datagram.
    pub(super) fn around(outer: &OuterHeader, kept: &[u8], len: usize) -> Self {
        let mut bytes = [0; LONGEST];
        let udp_len = (UDP_HEADER + len) as u16;
        let (header_len, addresses) = match (outer.source.ip(), outer.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes[0] = 0x45;
                bytes[1] = outer.ecn as u8;
                bytes[2..4].copy_from_slice(&(ip::IPV4_HEADER as u16).saturating_add(udp_len).to_be_bytes());
                bytes[8] = TIME_TO_LIVE;
                bytes[9] = ip::UDP;
                bytes[12..16].copy_from_slice(&source.octets());
                bytes[16..20].copy_from_slice(&destination.octets());
                ip::write_ipv4_checksum(&mut bytes, ip::IPV4_HEADER);
                (ip::IPV4_HEADER, 12..20)
            }
            (source, destination) => {
                bytes[..2].copy_from_slice(&(0x6000 | u16::from(outer.ecn as u8) << 4).to_be_bytes());
                bytes[4..6].copy_from_slice(&udp_len.to_be_bytes());
                bytes[6] = ip::UDP;
                bytes[7] = TIME_TO_LIVE;
                bytes[8..24].copy_from_slice(&sixteen(source));
                bytes[24..40].copy_from_slice(&sixteen(destination));
                (ip::IPV6_HEADER, 8..40)
            }
        };
        let udp = &mut bytes[header_len..header_len + UDP_HEADER];
        udp[..2].copy_from_slice(&outer.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&outer.destination.port().to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        let end = header_len + UDP_HEADER;
        let sum = ip::pseudo_header_sum(&bytes[addresses], ip::UDP, usize::from(udp_len));
        let sum = ip::checksum_add(ip::checksum_add(sum, &bytes[header_len..end]), kept);
        let sum = match !ip::fold(sum) {
            // Zero would mean that there is no checksum (RFC 768).
            0 => 0xffff,
            sum => sum,
        };
        bytes[end - 2..end].copy_from_slice(&sum.to_be_bytes());
        Self { bytes, len: end }
    }

    /// Returns the IP header, followed by the UDP header.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use weft_tunnel::Ecn;
    use weft_tunnel::ip::IpHeader;

    use super::*;

    fn packet(source: &str, destination: &str, datagram: &[u8]) -> Vec<u8> {
        let outer = OuterHeader {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            ecn: Ecn::Ce,
        };
        let headers = Headers::around(&outer, datagram, datagram.len());
        assert_eq!(headers.bytes().len(), outer.bytes());
        [headers.bytes(), datagram].concat()
    }

    #[test]
    fn the_headers_are_those_of_a_datagram_on_the_wire() {
        for (source, destination) in
            [("192.0.2.1:51820", "198.51.100.7:9"), ("[2001:db8::1]:51820", "[fe80::7]:9")]
        {
            let packet = packet(source, destination, b"odd");
            let header = IpHeader::parse(&packet).unwrap();
            assert_eq!((header.total_len, header.protocol), (packet.len(), ip::UDP));
            assert_eq!(header.source, source.parse::<std::net::SocketAddr>().unwrap().ip());
            assert_eq!(header.destination, destination.parse::<std::net::SocketAddr>().unwrap().ip());
            let udp = &packet[header.header_len..];
            assert_eq!(udp[..6], [0xca, 0x6c, 0, 9, 0, 11]);
            let sum = ip::pseudo_header_sum(&packet[ip::address_range(packet[0])], ip::UDP, udp.len());
            assert_eq!(ip::fold(ip::checksum_add(sum, udp)), 0xffff, "{packet:x?}");
            let congested = if packet[0] >> 4 == 4 { packet[1] & 3 } else { packet[1] >> 4 & 3 };
            assert_eq!(congested, 3);
        }
    }
}
