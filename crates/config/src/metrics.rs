//! The address at which metrics are served, and the host names that requests may use.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The prefix of a Unix socket's path.
const UNIX: &str = "unix:";

/// The address at which metrics are served, and the host names that requests may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The address; `None`: metrics are not served.
    pub address: Option<Address>,
    /// Names of this machine that requests may use, besides addresses and `localhost`.
    pub hosts: Vec<HostName>,
}

impl MetricsConfig {
    /// Returns a warning if metrics are served at every address of the machine.
    pub fn warning(&self) -> Option<String> {
        match &self.address {
            Some(Address::Tcp(address)) if address.ip().is_unspecified() => Some(format!(
                "metrics on {address}: every client that reaches this machine reads who the peers are; give the \
                     address of one network, such as 127.0.0.1, or block the port for others"
            )),
            _ => None,
        }
    }
}

/// An address at which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a TCP port, which is not 0.
    Tcp(SocketAddr),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

/// The text is not an address at which metrics can be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAddress {
    /// The text is neither an address with a port nor a path with the prefix `unix:`.
    #[error(
        "write an address and port like 127.0.0.1:9586 or [::1]:9586, or a path like unix:/run/weft/wg0/metrics.sock"
    )]
    Neither,
    /// The port is 0: clients would not know which port the system chose.
    #[error("write a port from 1 to 65535 behind the last colon; 9586 is usual")]
    Port,
    /// The path is relative: it is not defined to which directory.
    #[error("write the whole path of the socket, as in unix:/run/weft/wg0/metrics.sock")]
    Relative,
}

impl FromStr for Address {
    type Err = InvalidAddress;
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = Path::new(path);
            return if path.has_root() {
                Ok(Self::Unix(path.to_owned()))
            } else {
                Err(InvalidAddress::Relative)
            };
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => Err(InvalidAddress::Port),
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(InvalidAddress::Neither),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A name of this machine, in lower case and without a dot at its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

/// The text is not a valid host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a host name of ASCII letters, digits, dots and hyphens, without a port")]
pub struct InvalidHostName;

impl HostName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = InvalidHostName;
    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let may_be_in_it = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = (1..=253).contains(&name.len()) && name.bytes().all(may_be_in_it);
        if is_name { Ok(Self(name)) } else { Err(InvalidHostName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_is_written() {
        for text in ["127.0.0.1:9586", "[::1]:9586", "0.0.0.0:1", "unix:/run/weft/wg0/metrics.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_told_what_to_write() {
        for (text, error) in [
            ("9586", InvalidAddress::Neither),
            (":9586", InvalidAddress::Neither),
            ("localhost:9586", InvalidAddress::Neither),
            ("::1:9586", InvalidAddress::Neither),
            ("127.0.0.1:0", InvalidAddress::Port),
            ("unix:", InvalidAddress::Relative),
            ("unix:wg0.metrics", InvalidAddress::Relative),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_host_name_is_compared_in_lower_case() {
        assert_eq!("Gateway.Example.".parse::<HostName>().unwrap().as_str(), "gateway.example");
        for text in ["", ".", "a b", "gw:9586", "gw/", "[::1]"] {
            assert!(text.parse::<HostName>().is_err(), "{text}");
        }
    }
}
