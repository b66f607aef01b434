//! The configuration of one interface: the format of wg-quick, parsed once into checked types, and edits in place. Nothing
//! above this crate sees a configuration as text.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_tunnel::{PeerLimits, PresharedKey, PrivateKey, PublicKey};

pub mod device;
mod domain;
mod edit;
pub mod endpoint;
pub mod exit;
mod finish;
mod host;
mod key_file;
mod load;
pub mod metrics;
#[cfg_attr(unix, path = "permissions/unix.rs")]
#[cfg_attr(not(unix), path = "permissions/other.rs")]
mod permissions;
mod problem;
#[cfg(test)]
mod properties;
mod suggest;
mod tun_threads;
mod values;
mod wg_quick;
pub mod words;

pub use domain::{Domain, InvalidDomain};
pub use edit::{Saved, edit};
pub use finish::parse;
pub use host::without_keys;
pub use host::{Dns, Hook, HostConfig, KillSwitch, Stage};
pub use key_file::{with_all_keys_in_place, with_keys_in_place};
pub use load::{LoadError, load, load_as_service, name_of, path_of, read_text};
pub use problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning};
pub use tun_threads::{InvalidTunThreads, TunThreads};

/// IPv6 and UDP header and WireGuard's own 32 bytes: what the tunnel adds to a packet at most.
pub const OVERHEAD: u16 = 40 + 8 + 32;
/// Every IPv4 host takes packets of this size (RFC 791, section 3.1); smaller links help nobody.
pub const MIN_MTU: u16 = 576;
/// What every IPv6 link has to carry (RFC 8200, section 5).
pub const MIN_MTU_IPV6: u16 = 1280;
/// A packet of this size and [`OVERHEAD`] still fit into one IP packet.
pub const MAX_MTU: u16 = u16::MAX - OVERHEAD;

/// A configuration that was read, and what is worth telling about it.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// What to do.
    pub config: Config,
    /// What was accepted but is probably not meant that way, in the order of the file.
    pub warnings: Vec<Warning>,
}

/// One interface and its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our own end.
    pub interface: Interface,
    /// The other ends, in the order of the file; no public key twice, and no prefix given to two of them.
    pub peers: Vec<Peer>,
}

impl Config {
    /// The endpoint of each peer, if it is an address: what needs no name server.
    pub fn endpoint_addresses(&self) -> Vec<Option<SocketAddr>> {
        let address = |endpoint: &Endpoint| match endpoint {
            Endpoint::Address(address) => Some(*address),
            Endpoint::Name { .. } => None,
        };
        self.peers.iter().map(|peer| peer.endpoint.as_ref().and_then(address)).collect()
    }
}

/// Our own end of the tunnel.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The name of the device.
    pub name: InterfaceName,
    /// Our identity.
    pub private_key: Option<PrivateKey>,
    /// The UDP port to listen on; 0: one that the system chooses.
    pub listen_port: u16,
    /// The mark of every UDP packet that is sent (SO_MARK); 0: none.
    pub fw_mark: u32,
    /// The device's addresses with their prefix lengths, host bits kept.
    pub addresses: Vec<IpNet>,
    /// The device's MTU; without one it is derived from the routes to the endpoints.
    pub mtu: Option<u16>,
    /// Where the routes go.
    pub table: Table,
    /// What the system around the tunnel is asked for.
    pub host: HostConfig,
}

/// Another end of the tunnel.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its identity.
    pub public_key: PublicKey,
    /// Mixed into its handshakes if there is one.
    pub preshared_key: Option<PresharedKey>,
    /// Where to reach it before it was heard from.
    pub endpoint: Option<Endpoint>,
    /// The inner addresses that are its own, without host bits, none twice.
    pub allowed_ips: Vec<IpNet>,
    /// Seconds between keepalives that are sent whatever else is sent.
    pub persistent_keepalive: Option<NonZeroU16>,
    /// How fast packets may go to it and come from it.
    pub limits: PeerLimits,
    /// What people call it: the comment `# friendly_name = …`, which dashboards know.
    pub friendly_name: Option<String>,
}

/// Where a peer is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An address as it stands in the file.
    Address(SocketAddr),
    /// A name that has to be resolved first.
    Name {
        /// A host name, or an IPv6 address whose scope is the name of an interface (`fe80::1%eth0`).
        host: String,
        /// The UDP port.
        port: u16,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Where the routes to the allowed-ips go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// The main table.
    #[default]
    Auto,
    /// Nowhere: no routes.
    Off,
    /// This table only.
    Number(u32),
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// The text is not the name of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an interface name is 1 to 15 of the characters a-z A-Z 0-9 _ = + . - (and not `.` or `..`)")]
pub struct InvalidInterfaceName;

/// The name of a network interface: 1 to 15 of the characters `a-zA-Z0-9_=+.-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for InterfaceName {
    type Err = InvalidInterfaceName;
    fn from_str(text: &str) -> Result<Self, InvalidInterfaceName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_=+.-".contains(&byte);
        let valid =
            (1..=15).contains(&text.len()) && text.bytes().all(allowed) && text != "." && text != "..";
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidInterfaceName) }
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = InvalidInterfaceName;
    fn try_from(text: String) -> Result<Self, InvalidInterfaceName> {
        text.parse()
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_those_of_wg_quick() {
        for name in ["wg0", "a", "_=+.-", "fifteen-letters", "0"] {
            assert_eq!(name.parse::<InterfaceName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", "sixteen-letters!", "sixteen-letters0", "a b", "a/b", "wg0\n", "wgü"] {
            assert_eq!(name.parse::<InterfaceName>(), Err(InvalidInterfaceName), "{name:?}");
        }
    }

    #[test]
    fn an_endpoint_prints_as_it_is_written() {
        let name = |host: &str| Endpoint::Name { host: host.to_owned(), port: 1 }.to_string();
        assert_eq!(name("vpn.example"), "vpn.example:1");
        assert_eq!(name("fe80::1%eth0"), "[fe80::1%eth0]:1");
        assert_eq!(Endpoint::Address("[::1]:2".parse().unwrap()).to_string(), "[::1]:2");
    }
}
