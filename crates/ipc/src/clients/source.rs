//! The sources by which clients are counted.

use std::net::{IpAddr, Ipv6Addr};

/// The origin of a client. A client of the source with the most places gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// An IPv4 address, or the first half of an IPv6 address: a host may have all addresses of a /64.
    Address(IpAddr),
    /// A process on this machine.
    Process {
        /// The user id.
        user: u32,
        /// The process id, if the system reports it.
        id: Option<i32>,
    },
    /// The system reports no credentials.
    Unknown,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

#[cfg(unix)]
impl From<&tokio::net::UnixStream> for Source {
    fn from(stream: &tokio::net::UnixStream) -> Self {
        stream.peer_cred().map_or(Self::Unknown, |peer| Self::Process { user: peer.uid(), id: peer.pid() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_one_host_may_have_are_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
    }
}
