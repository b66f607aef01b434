//! The source addresses of a flood.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The lowest source port.
const FIRST_PORT: u16 = 1024;

/// A non-empty list of sources, used cyclically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(Vec<SocketAddr>);

impl Sources {
    /// Creates a list of one source.
    pub fn one(source: SocketAddr) -> Self {
        Self(vec![source])
    }

    /// Creates `count` sources, from the address `first` on: consecutive IPv4 addresses, or IPv6 addresses in
    /// consecutive /64 networks, since the limit per source counts by /64. Each has one port.
    pub fn addresses(first: IpAddr, count: usize) -> Self {
        let address = |number: usize| match first {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + number as u32)),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() + ((number as u128) << 64))),
        };
        Self((0..count.max(1)).map(|number| SocketAddr::new(address(number), port(number))).collect())
    }

    /// Creates `count` sources on different ports of one address.
    pub fn ports(address: IpAddr, count: usize) -> Self {
        Self((0..count.max(1)).map(|number| SocketAddr::new(address, port(number))).collect())
    }

    /// Returns the number of sources, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the source of datagram `number`.
    pub fn get(&self, number: usize) -> SocketAddr {
        self.0[number % self.0.len()]
    }
}

/// Returns a port for a number: each port once in 60,000 numbers, in a scattered order.
fn port(number: usize) -> u16 {
    const COUNT: usize = 60_000;
    // 7,919 is a prime that does not divide the count.
    FIRST_PORT + (number * 7919 % COUNT) as u16
}
