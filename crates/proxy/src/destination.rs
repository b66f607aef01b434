//! Where a client wants to go: an address or a name, and a port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The longest name (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 253;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

/// A host, as the client named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address. One of IPv4 is never mapped into IPv6.
    Address(IpAddr),
    /// A name, in lower case, which has to be looked up.
    Name(String),
}

/// The text is not a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    /// There is no port.
    #[error("a destination is HOST:PORT, with [ADDRESS]:PORT for IPv6")]
    NoPort,
    /// The port is not a number from 1 to 65535.
    #[error("a port is a number from 1 to 65535")]
    Port,
    /// The host is neither an address nor a name.
    #[error("a host is an address, or a name of ASCII letters, digits, `-`, `_` and `.` (others as xn--…)")]
    Host,
}

impl Destination {
    /// Makes a destination of a host as text and a port.
    ///
    /// # Errors
    /// When the host is neither an address nor a name, and when the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, InvalidDestination> {
        Self::with_host(host.parse()?, port)
    }

    /// Makes a destination of a host and a port.
    ///
    /// # Errors
    /// When the port is 0.
    pub fn with_host(host: Host, port: u16) -> Result<Self, InvalidDestination> {
        if port == 0 { Err(InvalidDestination::Port) } else { Ok(Self { host, port }) }
    }

    /// Reads HOST:PORT, or HOST alone if there is a default port, as in URLs and in the `Host` field of HTTP.
    ///
    /// # Errors
    /// Those of [`InvalidDestination`].
    pub fn with_default_port(text: &str, default: Option<u16>) -> Result<Self, InvalidDestination> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(InvalidDestination::Host)?;
                if !host.contains(':') {
                    return Err(InvalidDestination::Host);
                }
                match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if rest.is_empty() => (host, None),
                    None => return Err(InvalidDestination::NoPort),
                }
            }
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => return Err(InvalidDestination::NoPort),
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port.filter(|port| !(port.is_empty() && default.is_some())) {
            Some(port) => parse_port(port)?,
            None => default.ok_or(InvalidDestination::NoPort)?,
        };
        Self::new(host, port)
    }
}

/// Reads a port. Signs and spaces are refused.
pub(crate) fn parse_port(text: &str) -> Result<u16, InvalidDestination> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port > 0).ok_or(InvalidDestination::Port)
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip().to_canonical()), port: address.port() }
    }
}

impl FromStr for Destination {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        Self::with_default_port(text, None)
    }
}

impl FromStr for Host {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let bare = text.strip_suffix('.').unwrap_or(text);
        let is_long = |label: &str| label.is_empty() || label.len() > 63;
        let is_number =
            bare.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if bare.len() > MAX_NAME
            || !bare.bytes().all(is_name)
            || bare.split('.').any(is_long)
            // What ends in a number is an address that is written wrongly: no name does (RFC 3696, section
            // 2).
            || is_number
        {
            return Err(InvalidDestination::Host);
        }
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_read_as_it_is_written() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:443", "www.example.com:8080", "a_b-c.example.:1"] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), text);
        }
        let read = |text: &str| text.parse::<Destination>().unwrap().to_string();
        assert_eq!(read("[::ffff:192.0.2.1]:80"), "192.0.2.1:80");
        assert_eq!(read("WWW.Example.COM:80"), "www.example.com:80");
        let with_80 = |text: &str| Destination::with_default_port(text, Some(80)).unwrap().to_string();
        assert_eq!(with_80("example.com"), "example.com:80");
        assert_eq!(with_80("example.com:"), "example.com:80");
        assert_eq!(with_80("[2001:db8::1]"), "[2001:db8::1]:80");
        assert_eq!(with_80("example.com:81"), "example.com:81");
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        use InvalidDestination::{Host, NoPort, Port};
        let too_long = format!("{}:80", ["a".repeat(63).as_str(); 4].join("."));
        for (text, why) in [
            ("", NoPort),
            ("example.com", NoPort),
            ("2001:db8::1:80", NoPort),
            ("[2001:db8::1]80", NoPort),
            ("example.com:", Port),
            ("example.com:0", Port),
            ("example.com:+80", Port),
            ("example.com:65536", Port),
            (":80", Host),
            (".:80", Host),
            ("a..b:80", Host),
            ("exa mple.com:80", Host),
            ("bücher.example:80", Host),
            ("256.0.0.1:80", Host),
            ("127.1:80", Host),
            ("2130706433:80", Host),
            ("[192.0.2.1]:80", Host),
            ("[2001:db8::1:80", Host),
            ("user@example.com:80", Host),
            (too_long.as_str(), Host),
        ] {
            assert_eq!(text.parse::<Destination>(), Err(why), "{text:?}");
        }
    }
}
