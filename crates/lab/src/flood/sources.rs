//! Where the datagrams of a flood seem to come from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Ports from here on are given to sources.
const FIRST_PORT: u16 = 1024;

/// A list of sources that is gone through in turn, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources(Vec<SocketAddr>);

impl Sources {
    /// One address and port.
    pub fn one(source: SocketAddr) -> Self {
        Self(vec![source])
    }

    /// So many addresses, from `first` on: IPv4 addresses one behind the other, of IPv6 one in each /64,
    /// which is what a limit for one source counts. Each has one port.
    pub fn addresses(first: IpAddr, count: usize) -> Self {
        let address = |number: usize| match first {
            IpAddr::V4(first) => IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() + number as u32)),
            IpAddr::V6(first) => IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() + ((number as u128) << 64))),
        };
        Self((0..count.max(1)).map(|number| SocketAddr::new(address(number), port(number))).collect())
    }

    /// So many ports of one address.
    pub fn ports(address: IpAddr, count: usize) -> Self {
        Self((0..count.max(1)).map(|number| SocketAddr::new(address, port(number))).collect())
    }

    /// Of these sources those that `keep` keeps; all of them if it keeps none.
    pub fn filter(self, keep: impl Fn(SocketAddr) -> bool) -> Self {
        let kept: Vec<_> = self.0.iter().copied().filter(|source| keep(*source)).collect();
        if kept.is_empty() { self } else { Self(kept) }
    }

    /// The first `count` of them.
    pub fn first(mut self, count: usize) -> Self {
        self.0.truncate(count.max(1));
        self
    }

    /// How many there are, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The source of a datagram.
    pub fn get(&self, number: usize) -> SocketAddr {
        self.0[number % self.0.len()]
    }
}

/// A port, each once in 60,000 numbers and in no order.
fn port(number: usize) -> u16 {
    const COUNT: usize = 60_000;
    // 7,919 is a prime that does not divide the count.
    FIRST_PORT + (number * 7919 % COUNT) as u16
}
