//! Parses the configuration of one interface (wg-quick format) once into checked types, and edits its text in
//! place. Only this crate interprets the text of a configuration.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::SystemTime;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_tunnel::{PeerSettings, PublicKey};

use device::{AllowedIpChange, DeviceChange, PeerChange};
use settings::{InterfaceSettings, InterfaceSettingsChange, ReportSettings};

mod advice;
pub mod device;
mod dialect;
mod domain;
mod edit;
pub mod endpoint;
pub mod exit;
mod expiry;
mod finish;
mod host;
mod key_file;
pub mod keys;
pub mod lexer;
mod load;
pub mod mapped;
pub mod metrics;
pub mod peers;
#[cfg(unix)]
mod permissions;
mod pool;
mod printable;
mod problem;
#[cfg(test)]
mod properties;
mod regular_file;
mod remark;
mod reports;
pub mod settings;
mod shell;
mod suggest;
mod threads;
#[cfg(not(unix))]
mod unsupported;
pub mod values;
mod wg;
mod wg_quick;

#[cfg(not(unix))]
use unsupported as permissions;

pub use advice::as_root;
#[cfg(target_os = "linux")]
pub use advice::unit;
pub use dialect::{Dialect, is_of_amnezia_wg};
pub use domain::{Domain, InvalidDomain};
pub use edit::{PeerComments, Saved, edit};
pub use expiry::{Expiry, InvalidExpiry};
pub use finish::{parse, parse_to_edit, parse_to_start};
pub use host::without_keys;
pub use host::{ClientSettings, Dns, Hook, HookPhase, HostConfig, KeyToCome, KillSwitch};
pub use key_file::{with_all_keys_in_place, with_keys_in_place};
pub use lexer::line_with_network;
pub use load::{
    LoadError, Source, interface_of, load_as_service, load_to_start, name_of, path_of, read_text_as_service,
};
pub use pool::{PoolError, next_free};
pub use printable::{Notation, SAYS_ALL, is_unprintable, printable, printable_bytes};
pub use problem::{ConfigError, ConfigErrors, Location, Notice, Problem, Warning, foreign};
pub use regular_file::{MAX_BYTES, is_descriptor, read_named, read_regular_text};
pub use shell::shell_word;
pub use suggest::{closest, near, shown_key};
pub use threads::{InvalidThreads, MAX_THREADS, PacketThreads, Threads, TunThreads};
pub use wg::{add_allowed_ips, parse_change};
pub use wg_quick::WgQuickKeys;

/// The most bytes that the tunnel adds to a packet: IPv6 header (40), UDP header (8), and WireGuard's header
/// and tag (32).
pub const OVERHEAD: u16 = 40 + 8 + 32;
/// The smallest MTU accepted, in bytes. Every IPv4 host accepts packets of this size (RFC 791, section 3.1),
/// so a smaller MTU has no use.
pub const MIN_MTU: u16 = 576;
/// The smallest MTU accepted with an IPv6 address, in bytes: every IPv6 link carries it (RFC 8200, section
/// 5).
pub const MIN_MTU_IPV6: u16 = 1280;
/// The largest MTU accepted, in bytes: a packet of this size plus [`OVERHEAD`] still fits into one IP packet.
pub const MAX_MTU: u16 = u16::MAX - OVERHEAD;

/// Returns the device's MTU for routes to the peers which carry packets of `outer_bytes`: [`OVERHEAD`] less,
/// within what the address families in the tunnel allow.
pub fn tunnel_mtu(outer_bytes: u32, carries_ipv6: bool) -> u16 {
    let least = if carries_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    let inner = outer_bytes.saturating_sub(OVERHEAD.into());
    u16::try_from(inner).unwrap_or(MAX_MTU).clamp(least, MAX_MTU)
}

/// A parsed configuration and its warnings.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The checked configuration.
    pub config: Config,
    /// Warnings about settings that are accepted but probably not intended, in the order of the file.
    pub warnings: Vec<Warning>,
}

/// One interface and its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The local end of the tunnel, from `[Interface]`.
    pub interface: Interface,
    /// The remote ends, in the order of the file. No public key occurs twice, and no prefix belongs to two
    /// peers.
    pub peers: Vec<Peer>,
    /// The peers that have ended, by `# weft: Expires`, and are not let in. Their prefixes are still theirs.
    pub expired: Vec<Peer>,
}

impl Config {
    /// Returns the endpoint of each peer if it is an address; `None` for a host name and for a peer without
    /// an endpoint.
    pub fn endpoint_addresses(&self) -> Vec<Option<SocketAddr>> {
        let address = |endpoint: &Endpoint| match endpoint {
            Endpoint::Address(address) => Some(*address),
            Endpoint::Name { .. } => None,
        };
        self.peers.iter().map(|peer| peer.endpoint.as_ref().and_then(address)).collect()
    }

    /// Returns the change that configures the tunnel. `endpoints` are the addresses of the peers, in the
    /// order of [`Self::peers`].
    pub fn change(&self, endpoints: &[Option<SocketAddr>]) -> DeviceChange {
        let peers = self.peers.iter().enumerate().map(|(place, peer)| PeerChange {
            endpoint: endpoints.get(place).copied().flatten(),
            settings: peer.settings.clone().into(),
            replace_allowed_ips: true,
            allowed_ips: peer.allowed_ips.iter().copied().map(AllowedIpChange::Add).collect(),
            ..PeerChange::new(peer.public_key)
        });
        // Without a key in the configuration the present key stays: a command sets it.
        let private_key = self.interface.settings.private_key.clone().map(Some);
        let settings = InterfaceSettingsChange { private_key, ..InterfaceSettingsChange::default() };
        DeviceChange { settings, replace_peers: true, peers: peers.collect() }
    }

    /// Takes the peers out of [`Self::peers`] that have ended now, and returns their keys. A peer that has
    /// ended does not come back when the clock is set back.
    pub fn end_peers(&mut self, now: SystemTime) -> Vec<PublicKey> {
        let is_over = |peer: &mut Peer| peer.report.expires.is_some_and(|expiry| expiry.is_over(now));
        let ended: Vec<Peer> = self.peers.extract_if(.., is_over).collect();
        let keys = ended.iter().map(|peer| peer.public_key).collect();
        self.expired.extend(ended);
        keys
    }

    /// Reports whether IPv6 is in the tunnel: in Address or in AllowedIPs.
    pub fn carries_ipv6(&self) -> bool {
        let allowed_ips = self.peers.iter().flat_map(|peer| &peer.allowed_ips);
        self.interface.addresses.iter().chain(allowed_ips).any(|net| matches!(net, IpNet::V6(_)))
    }

    /// Reports whether the device needs IPv6 at the start: it gets an IPv6 address, or an IPv6 route.
    pub fn needs_ipv6(&self) -> bool {
        let has_address = self.interface.addresses.iter().any(|net| matches!(net, IpNet::V6(_)));
        has_address || (self.interface.table != Table::Off && self.carries_ipv6())
    }
}

/// The local end of the tunnel.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The name of the TUN device.
    pub name: InterfaceName,
    /// The settings that wg(8) knows as well. The private key may be missing only if there is a PostUp
    /// command, which may set it.
    pub settings: InterfaceSettings,
    /// The device's addresses with their prefix lengths, host bits kept.
    pub addresses: Vec<IpNet>,
    /// The device's MTU in bytes; `None`: it is derived from the routes to the endpoints.
    pub mtu: Option<u16>,
    /// The routing table that gets the routes to the allowed-ips.
    pub table: Table,
    /// Settings of the system around the tunnel.
    pub host: HostConfig,
}

impl Interface {
    /// Reports whether peers that are added send everything here, in IPv4 and in IPv6: the gateway has a
    /// network of the family, and PeerAllowedIPs has all of it, as it has if it is not set.
    pub fn takes_everything_of_peers(&self) -> [bool; 2] {
        let told = &self.host.clients.allowed_ips;
        let is_own =
            |net: &&IpNet| !matches!(net.addr(), IpAddr::V6(address) if address.is_unicast_link_local());
        [true, false].map(|is_v4| {
            let has_network = self.addresses.iter().filter(is_own).any(|net| net.addr().is_ipv4() == is_v4);
            let is_all = |net: &IpNet| net.prefix_len() == 0 && net.addr().is_ipv4() == is_v4;
            has_network && (told.is_empty() || told.iter().any(is_all))
        })
    }
}

/// A remote end of the tunnel.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The public key, which identifies the peer.
    pub public_key: PublicKey,
    /// The initial endpoint: used until the peer is heard from.
    pub endpoint: Option<Endpoint>,
    /// The inner prefixes that belong to the peer: host bits cleared, no duplicates.
    pub allowed_ips: Vec<IpNet>,
    /// The settings that the tunnel has as well.
    pub settings: PeerSettings,
    /// The settings that only reports need.
    pub report: ReportSettings,
}

/// The endpoint of a peer, as configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// An IP address and a UDP port.
    Address(SocketAddr),
    /// A name that has to be resolved first.
    Name {
        /// A host name, or an IPv6 address with the name of an interface as its scope (`fe80::1%eth0`).
        host: String,
        /// The UDP port.
        port: u16,
    },
}

impl Endpoint {
    /// Returns the UDP port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name { port, .. } => *port,
        }
    }
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

/// The routing table for the routes to the allowed-ips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// The main table; a default route goes into a separate table.
    #[default]
    Auto,
    /// No routes are added.
    Off,
    /// All routes go into this table.
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

/// The text is not a valid interface name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInterfaceName {
    /// It is too long, or has other characters.
    #[error("an interface name is 1 to 15 of the characters a-z A-Z 0-9 _ = + . - (and not `.` or `..`)")]
    Characters,
    /// Linux has settings for all interfaces and for new ones under these names (/proc/sys/net/ipv4/conf).
    #[error("all and default cannot be names of interfaces")]
    Reserved,
    /// Every network namespace has an interface of this name.
    #[error("lo cannot be the name of a tunnel, it is the loopback interface")]
    Loopback,
}

/// The name of a network interface: 1 to 15 of the characters `a-zA-Z0-9_=+.-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Returns the name as text.
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
        match text {
            "all" | "default" => Err(InvalidInterfaceName::Reserved),
            _ if valid => Ok(Self(text.to_owned())),
            _ => Err(InvalidInterfaceName::Characters),
        }
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
            assert_eq!(name.parse::<InterfaceName>(), Err(InvalidInterfaceName::Characters), "{name:?}");
        }
    }

    #[test]
    fn names_that_the_kernel_has_given_away_are_no_interface_names() {
        for (name, reason) in
            [("all", InvalidInterfaceName::Reserved), ("default", InvalidInterfaceName::Reserved)]
        {
            assert_eq!(name.parse::<InterfaceName>(), Err(reason), "{name}");
        }
        for name in ["All", "defaults", "lo", "call"] {
            assert!(name.parse::<InterfaceName>().is_ok(), "{name}");
        }
    }

    #[test]
    fn the_tunnels_mtu_is_80_less_within_what_its_families_allow() {
        for (outer, carries_ipv6, mtu) in [
            (1500, false, 1420),
            (1280, false, 1200),
            (1280, true, 1280),
            (0, false, 576),
            (65_536, false, 65_455),
            (u32::MAX, true, 65_455),
        ] {
            assert_eq!(tunnel_mtu(outer, carries_ipv6), mtu, "{outer}");
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
