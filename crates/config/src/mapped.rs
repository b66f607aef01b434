//! IPv4-mapped IPv6 addresses (`::ffff:192.0.2.1`, RFC 4291, section 2.5.5.2). They stand for IPv4 addresses:
//! no packet has one, and no IPv6 socket of weft can send to one.

use std::net::{IpAddr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};

/// The length of the prefix of all of them.
const PREFIX_LEN: u8 = 96;

/// Returns the endpoint, as IPv4 if it is mapped.
pub fn endpoint(endpoint: SocketAddr) -> SocketAddr {
    match endpoint.ip().to_canonical() {
        address @ IpAddr::V4(_) => SocketAddr::new(address, endpoint.port()),
        // The scope stays.
        IpAddr::V6(_) => endpoint,
    }
}

/// Returns the prefix or the address with its prefix length, as IPv4 if it is mapped.
pub fn net(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let length = v6.prefix_len().checked_sub(PREFIX_LEN);
    let v4 = v6.addr().to_ipv4_mapped().zip(length);
    v4.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_ipv4_and_others_stay() {
        for (given, expected) in [
            ("[::ffff:192.0.2.1]:5", "192.0.2.1:5"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("[fe80::1%3]:5", "[fe80::1%3]:5"),
            ("[::192.0.2.1]:5", "[::c000:201]:5"),
        ] {
            assert_eq!(endpoint(given.parse().unwrap()).to_string(), expected);
        }
        for (given, expected) in [
            ("::ffff:10.9.0.1/120", "10.9.0.1/24"),
            ("::ffff:10.9.0.2/128", "10.9.0.2/32"),
            ("::ffff:0.0.0.0/96", "0.0.0.0/0"),
            ("::ffff:0.0.0.0/95", "::ffff:0.0.0.0/95"),
            ("::/0", "::/0"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(net(given.parse().unwrap()).to_string(), expected);
        }
    }
}
