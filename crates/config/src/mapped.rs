//! Endpoints that are IPv4-mapped IPv6 addresses (`::ffff:192.0.2.1`, RFC 4291, section 2.5.5.2). They stand
//! for IPv4 addresses: no IPv6 socket of weft can send to one.

use std::net::{IpAddr, SocketAddr};

/// Returns the endpoint, as IPv4 if it is mapped.
pub fn endpoint(endpoint: SocketAddr) -> SocketAddr {
    match endpoint.ip().to_canonical() {
        address @ IpAddr::V4(_) => SocketAddr::new(address, endpoint.port()),
        // The scope stays.
        IpAddr::V6(_) => endpoint,
    }
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
    }
}
