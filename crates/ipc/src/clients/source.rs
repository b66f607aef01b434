//! The sources by which clients are counted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The origin of a client: what one client may have all of is one source. A client of the source with the
/// most places gives way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// An IPv4 address, or the first half of an IPv6 address: a host may have all addresses of a /64. Every
    /// process of this machine has all those of the loopback.
    Address(IpAddr),
    /// A process on this machine.
    Process {
        /// The user id.
        user: u32,
        /// The process id, if the system reports it.
        id: Option<i32>,
    },
    /// An address in a tunnel.
    Tunnel {
        /// The first network of the peer that has the address, and the length of its prefix.
        peer: (IpAddr, u8),
        /// The address.
        address: IpAddr,
    },
    /// The system reports no credentials.
    Unknown,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Address(address) | Self::Tunnel { address, .. } => address.fmt(f),
            Self::Process { user, id: Some(id) } => write!(f, "process {id} of user {user}"),
            Self::Process { user, id: None } => write!(f, "user {user}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl Source {
    /// Returns what has this source and others like it: a user has as many processes as it starts, and a peer
    /// all addresses of its networks.
    #[must_use]
    pub fn owner(self) -> Self {
        match self {
            Self::Process { user, .. } => Self::Process { user, id: None },
            Self::Tunnel { peer, .. } => Self::Tunnel { peer, address: peer.0 },
            address => address,
        }
    }

    /// Reports whether a client that finds no place may be turned away. One on this machine waits.
    pub(super) fn may_be_turned_away(self) -> bool {
        matches!(self, Self::Address(_) | Self::Tunnel { .. })
    }

    /// Reports whether a client gives way also while something moves: a peer that lets a little move on each
    /// of its connections would keep all others out.
    pub(super) fn gives_way_while_moving(self) -> bool {
        matches!(self, Self::Tunnel { .. })
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
    fn what_one_host_or_user_may_have_is_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        for loopback in ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.2"] {
            assert_eq!(source(loopback), source("127.0.0.2"));
        }
        let process = |user, id| Source::Process { user, id: Some(id) };
        assert_eq!(process(1, 2).owner(), process(1, 3).owner());
        assert_ne!(process(1, 2).owner(), process(2, 2).owner());
    }
}
