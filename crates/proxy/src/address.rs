//! Addresses on the host at which the proxy listens, or to which it connects, as the command line has them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use weft_config::endpoint;

use crate::destination::{Destination, Host, parse_port};

/// An address of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    /// TCP or UDP. A port alone is one of 127.0.0.1.
    Ip(SocketAddr),
    /// A Unix socket, for this user only.
    Unix(PathBuf),
}

/// The text is not an address of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an address of this host is PORT, ADDRESS:PORT, localhost:PORT, or the path of a Unix socket with a `/` in it"
)]
pub struct InvalidLocalAddress;

impl FromStr for LocalAddress {
    type Err = InvalidLocalAddress;

    fn from_str(text: &str) -> Result<Self, InvalidLocalAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(InvalidLocalAddress) } else { Ok(Self::Unix(path.into())) };
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        if let Ok(port) = parse_port(text) {
            return Ok(Self::Ip((loopback, port).into()));
        }
        if let Some(address) = link_local(text) {
            return Ok(Self::Ip(address));
        }
        match text.parse() {
            Ok(Destination { host: Host::Address(address), port }) => Ok(Self::Ip((address, port).into())),
            Ok(Destination { host: Host::Name(name), port }) if name == "localhost" => {
                Ok(Self::Ip((loopback, port).into()))
            }
            _ => Err(InvalidLocalAddress),
        }
    }
}

/// Reads `[ADDRESS%INTERFACE]:PORT`.
fn link_local(text: &str) -> Option<SocketAddr> {
    endpoint::parse(text).filter(|address| address.port() != 0 && text.contains('%'))
}

impl LocalAddress {
    /// Reports whether only this machine reaches it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Ip(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => endpoint::text(address).fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The transport of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Streams of TCP or Unix sockets.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A port of the host that leads into the tunnel: `[udp:]LOCAL=REMOTE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// TCP or UDP.
    pub transport: Transport,
    /// Where it listens, on the host.
    pub local: LocalAddress,
    /// Where it leads, in the tunnel.
    pub remote: Destination,
}

/// A port of the tunnel that leads to the host: `[udp:]TUNNEL=LOCAL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reverse {
    /// TCP or UDP.
    pub transport: Transport,
    /// Where it listens, in the tunnel.
    pub tunnel: TunnelAddress,
    /// Where it leads, on the host.
    pub local: LocalAddress,
}

/// A port in the tunnel to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelAddress {
    /// The address; `None`: all addresses of the interface.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
}

/// The text is not a forward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidForward {
    /// The text has no two ends.
    #[error("a forward is [udp:]FROM=TO, as in 8080=intranet.example:80")]
    Form,
    /// The end on the host is wrong.
    #[error("{text}: {source}")]
    Local {
        /// The wrong text.
        text: String,
        /// What is wrong with it.
        source: InvalidLocalAddress,
    },
    /// The end in the tunnel is wrong.
    #[error("{text}: {source}")]
    Remote {
        /// The wrong text.
        text: String,
        /// What is wrong with it.
        source: crate::InvalidDestination,
    },
    /// A Unix socket of datagrams.
    #[error("{text}: a forward of UDP has ports at both ends, not Unix sockets")]
    UnixDatagrams {
        /// The path.
        text: String,
    },
}

/// Splits `[udp:]FROM=TO`.
fn ends(text: &str) -> Result<(Transport, &str, &str), InvalidForward> {
    let (transport, text) = match text.strip_prefix("udp:") {
        Some(text) => (Transport::Udp, text),
        None => (Transport::Tcp, text.strip_prefix("tcp:").unwrap_or(text)),
    };
    let (from, to) = text.split_once('=').ok_or(InvalidForward::Form)?;
    Ok((transport, from, to))
}

fn local(text: &str, transport: Transport) -> Result<LocalAddress, InvalidForward> {
    match text.parse() {
        Ok(LocalAddress::Unix(_)) if transport == Transport::Udp => {
            Err(InvalidForward::UnixDatagrams { text: text.to_owned() })
        }
        parsed => parsed.map_err(|source| InvalidForward::Local { text: text.to_owned(), source }),
    }
}

impl FromStr for Forward {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        let (transport, from, to) = ends(text)?;
        let remote = to.parse().map_err(|source| InvalidForward::Remote { text: to.to_owned(), source })?;
        Ok(Self { transport, local: local(from, transport)?, remote })
    }
}

impl FromStr for Reverse {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        let (transport, from, to) = ends(text)?;
        let wrong = |source| InvalidForward::Remote { text: from.to_owned(), source };
        let tunnel = match parse_port(from) {
            Ok(port) => TunnelAddress { address: None, port },
            Err(_) => match from.parse::<Destination>().map_err(wrong)? {
                Destination { host: Host::Address(address), port } => {
                    TunnelAddress { address: Some(address), port }
                }
                Destination { host: Host::Name(_), .. } => {
                    return Err(wrong(crate::InvalidDestination::Host));
                }
            },
        };
        Ok(Self { transport, tunnel, local: local(to, transport)? })
    }
}

impl fmt::Display for TunnelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).fmt(f),
            None => write!(f, "port {} of the tunnel", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_host_is_loopback_unless_it_says_otherwise() {
        for (text, shown, is_local) in [
            ("1080", "127.0.0.1:1080", true),
            ("localhost:1080", "127.0.0.1:1080", true),
            ("[::1]:1080", "[::1]:1080", true),
            ("0.0.0.0:1080", "0.0.0.0:1080", false),
            ("192.0.2.1:1080", "192.0.2.1:1080", false),
            ("[fe80::1%lo]:1080", "[fe80::1%lo]:1080", false),
            ("unix:socks", "socks", true),
            ("/run/user/1000/socks", "/run/user/1000/socks", true),
            ("./socks", "./socks", true),
        ] {
            let address: LocalAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (shown, is_local));
        }
        let links = ["[fe80::1%]:1080", "[fe80::1%lo]:0", "[fe80::1%no-such-link]:1080", "fe80::1%lo:1080"];
        let others = ["", "0", "65536", "example.com:1080", "192.0.2.1", "unix:", "::1:1080"];
        for text in others.into_iter().chain(links) {
            assert_eq!(text.parse::<LocalAddress>(), Err(InvalidLocalAddress), "{text:?}");
        }
    }

    #[test]
    fn a_forward_has_a_transport_and_two_ends() {
        let forward: Forward = "udp:5353=[fd00::1]:53".parse().unwrap();
        assert_eq!(forward.transport, Transport::Udp);
        assert_eq!(
            (forward.local.to_string().as_str(), forward.remote.to_string().as_str()),
            ("127.0.0.1:5353", "[fd00::1]:53")
        );
        let forward: Forward = "./db.sock=db.example:5432".parse().unwrap();
        assert_eq!(
            (forward.transport, forward.local),
            (Transport::Tcp, LocalAddress::Unix("./db.sock".into()))
        );
        let reverse: Reverse = "8080=3000".parse().unwrap();
        assert_eq!(reverse.tunnel, TunnelAddress { address: None, port: 8080 });
        let reverse: Reverse = "udp:10.0.0.2:53=192.0.2.1:5353".parse().unwrap();
        assert_eq!(reverse.tunnel.to_string(), "10.0.0.2:53");
    }

    #[test]
    fn a_wrong_forward_is_refused_with_its_wrong_end() {
        let forward = |text: &str| text.parse::<Forward>().unwrap_err().to_string();
        assert!(forward("8080").contains("[udp:]FROM=TO"));
        assert!(forward("8080=example.com").starts_with("example.com: a destination is HOST:PORT"));
        assert!(forward("x=example.com:80").starts_with("x: an address of this host is"));
        assert!(forward("udp:./x=example.com:80").starts_with("./x: a forward of UDP has ports"));
        let reverse = |text: &str| text.parse::<Reverse>().unwrap_err().to_string();
        assert!(reverse("example.com:80=80").starts_with("example.com:80: a host is"));
        assert!(reverse("80=example.com:80").starts_with("example.com:80: an address of this host is"));
    }
}
