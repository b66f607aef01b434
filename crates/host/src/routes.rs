//! Reads and changes the addresses, the routes, the policy routing rules and the MTU of the device in the
//! operating system.
//!
//! To be called on a control thread only: every call waits for the system's answer. [`crate::Plan`] decides
//! what is added, and [`crate::Applied`] adds and removes it.

use std::fmt;
use std::io;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_config::{Interface, InterfaceName, Peer, Table};

use weft_config::exit;

#[cfg(any(test, target_os = "macos", target_os = "freebsd"))]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd")),
    allow(dead_code, unreachable_pub, reason = "only tests use it here")
)]
pub(crate) mod bsd;
mod endpoint;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, target_os = "macos", target_os = "freebsd", windows))]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd", windows)),
    allow(dead_code, unreachable_pub, reason = "only tests use it here")
)]
pub(crate) mod tables;
#[cfg(any(test, windows))]
#[cfg_attr(not(windows), allow(dead_code, unreachable_pub, reason = "only tests use it here"))]
pub(crate) mod windows;

#[cfg(target_os = "linux")]
use linux as platform;

/// The network configuration of this machine.
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub type Netlink = tables::Configurator<bsd::Programs<bsd::System>>;
#[cfg(not(any(target_os = "macos", target_os = "freebsd", windows)))]
pub use platform::Netlink;
/// The network configuration of this machine.
#[cfg(windows)]
pub type Netlink = tables::Configurator<windows::IpHelper<windows::System>>;

pub use endpoint::{FoundRoute, Routing, Via};
pub(crate) use endpoint::{endpoint_routes, halves, link_of};
#[cfg(target_os = "linux")]
pub use platform::{GatewayRoute, MainRoute, RouteAnswer, VethEnd};

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name when it was found.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// Its MTU in bytes when it was found.
    pub mtu: u32,
}

/// The state of a device, as far as other programs change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Its name now.
    pub name: String,
    /// Whether it is a TUN, as weft's own.
    pub is_tun: bool,
    pub is_up: bool,
    /// In bytes.
    pub mtu: u32,
}

/// Limits of a device's transmit queue and of its super-packets. `None` leaves the system's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Packets (or super-packets) that wait for a reader.
    pub tx_queue_len: Option<u32>,
    /// The largest super-packet that TCP hands over, in bytes, headers included.
    pub gso_max_bytes: Option<u32>,
    /// The largest number of segments in such a super-packet.
    pub gso_max_segments: Option<u32>,
}

/// Why the system's network configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A netlink socket cannot be opened.
    #[error("cannot open a netlink socket: {0}; the kernel or the sandbox has to allow AF_NETLINK")]
    Open(#[source] io::Error),
    /// There is no such device.
    #[error("there is no interface {0}{PLACE}")]
    NoLink(String),
    /// The system gives its tunnels other names.
    #[error(
        "the interface {name} cannot be: the tunnels of macOS are named `utun` with a number; rename the file to \
         utun{number}.conf, say, or give that name"
    )]
    NotUtun {
        /// The name that was asked for.
        name: String,
        /// A number that is rarely in use.
        number: u32,
    },
    /// The kernel rejected the request.
    #[error("cannot {action}: {error}; {advice}")]
    Refused {
        /// The action that failed, with its address, route and interface.
        action: String,
        /// The error of the kernel.
        error: io::Error,
        advice: &'static str,
    },
    /// Another program has made a route to the prefix.
    #[error(
        "cannot {action}: {prefix} is already routed {way}; remove that route or take the prefix out of AllowedIPs, or \
         have weft use another table (`Table = NUMBER`) or none (`Table = off`)"
    )]
    RouteExists {
        /// The action that failed, with its route and interface.
        action: String,
        prefix: IpNet,
        /// Where it is routed.
        way: String,
    },
    /// The address family is switched off.
    #[error(
        "cannot {action}: IPv6 is switched off for it{SWITCHED_OFF_BY}, or remove the IPv6 addresses from Address and \
         AllowedIPs"
    )]
    Ipv6Off {
        /// The action that failed.
        action: String,
    },
    /// The MTU is too small for IPv6.
    #[error(
        "cannot {action}: the interface has MTU {mtu}, and IPv6 needs 1280; set MTU = 1280 or more, or remove the IPv6 \
         addresses from Address and AllowedIPs"
    )]
    MtuForIpv6 {
        /// The action that failed.
        action: String,
        /// The MTU that the interface has, in bytes.
        mtu: u32,
    },
    /// The kernel did not answer.
    #[error("cannot {action}: the kernel did not answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The action that failed.
        action: String,
    },
    /// This platform cannot do it yet.
    #[error("cannot {action}: weft does not set addresses and routes on this platform yet")]
    Unsupported {
        /// The action that failed.
        action: String,
    },
}

/// What switches IPv6 off, also for interfaces that do not exist yet, and how to switch it on.
const SWITCHED_OFF_BY: &str = if cfg!(target_os = "linux") {
    " by the sysctl net.ipv6.conf.default.disable_ipv6 or net.ipv6.conf.all.disable_ipv6, or by its own; set them to 0"
} else {
    "; switch it on"
};

/// Where devices are looked for.
const PLACE: &str = if cfg!(target_os = "linux") { " in this network namespace" } else { "" };

/// A message of netlink follows its request, or the one before it in a list, at once; waiting longer means
/// that it was lost.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

impl RouteError {
    /// Returns the exit code for this error.
    pub fn exit_code(&self) -> exit::Code {
        let permission = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::Open(error) | Self::Refused { error, .. } if permission(error) => exit::Code::Permission,
            Self::NotUtun { .. } => exit::Code::Usage,
            // The file wants what the machine is set not to have: another start would fail too.
            Self::Ipv6Off { .. } => exit::Code::Configuration,
            _ => exit::Code::Failure,
        }
    }
}

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "ipv4")]
    V4,
    /// IPv6.
    #[serde(rename = "ipv6")]
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Returns the family of a prefix.
    pub fn of(prefix: IpNet) -> Self {
        if prefix.addr().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V4 { "IPv4" } else { "IPv6" })
    }
}

/// A rule of policy routing, one of the two kinds that a full tunnel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// The family of the packets that it is for.
    pub family: Family,
    /// Its priority: rules are evaluated in ascending order.
    pub priority: u32,
    pub kind: RuleKind,
}

/// The effect of a rule. Prints in the syntax of ip-rule(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    /// Packets that do not have the mark use the table.
    Unmarked { mark: u32, table: u32 },
    /// Packets use the main table, except its default routes.
    MainWithoutDefault,
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmarked { mark, table } => write!(f, "not fwmark {mark:#x} table {table}"),
            Self::MainWithoutDefault => f.write_str("table main suppress_prefixlength 0"),
        }
    }
}

/// A rule of policy routing as found in the system, whichever program added it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRule {
    /// The family of the packets that it is for.
    pub family: Family,
    pub priority: u32,
    /// The mark that it matches, if any.
    pub mark: Option<u32>,
    /// Whether it is for the packets that do not match.
    pub is_inverted: bool,
    /// The table that it leads to; 0: none.
    pub table: u32,
    /// Whether its maker has not told its name, as weft does not: ip(8) and the daemons of networks do.
    pub is_unsigned: bool,
    /// Routes with this prefix length or a shorter one do not count, if given.
    pub suppressed: Option<u32>,
}

/// A rule of another program that comes before the one of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    pub priority: u32,
    /// As ip-rule(8) writes it.
    pub text: String,
    /// Whether it blocks packets, instead of leading them past the tunnel.
    pub blocks: bool,
    /// Whether it is for all packets of programs that have no mark.
    pub is_for_all: bool,
    /// Whether it is for some addresses.
    pub names_addresses: bool,
}

impl FoundRule {
    /// Reports whether it is this rule, at the same priority.
    pub fn is(&self, rule: &Rule) -> bool {
        *self == Self { is_unsigned: self.is_unsigned, ..Self::from(rule) }
    }
}

impl From<&Rule> for FoundRule {
    /// Returns the rule as it is found when it is in force.
    fn from(rule: &Rule) -> Self {
        let Rule { family, priority, kind } = *rule;
        let (mark, is_inverted, table, suppressed) = match kind {
            RuleKind::Unmarked { mark, table } => (Some(mark), true, table, None),
            RuleKind::MainWithoutDefault => (None, false, MAIN_TABLE, Some(0)),
        };
        Self { family, priority, mark, is_inverted, table, is_unsigned: true, suppressed }
    }
}

/// The MTU of an Ethernet link in bytes, used when nothing better is known.
pub(crate) const USUAL_MTU: u32 = 1500;

/// The kernel's number of the main table (rt_tables: RT_TABLE_MAIN).
pub const MAIN_TABLE: u32 = 254;

/// Returns the table and the prefixes to route there, longest first; `None` if there are no routes to add.
pub(crate) fn planned_routes(interface: &Interface, peers: &[Peer]) -> Option<(u32, Vec<IpNet>)> {
    let table = match interface.table {
        Table::Off => return None,
        Table::Auto => MAIN_TABLE,
        Table::Number(number) => number,
    };
    // The kernel routes an address's own network through the device by itself, in the main table only.
    let connected: Vec<IpNet> = if interface.table == Table::Auto {
        interface.addresses.iter().map(IpNet::trunc).filter(|net| has_connected_route(*net)).collect()
    } else {
        Vec::new()
    };
    let mut prefixes = routed_prefixes(peers);
    prefixes.retain(|prefix| !connected.iter().any(|net| net.contains(prefix)));
    Some((table, prefixes))
}

/// Returns the prefixes of all peers, longest first.
pub(crate) fn routed_prefixes(peers: &[Peer]) -> Vec<IpNet> {
    let mut prefixes: Vec<IpNet> = peers.iter().flat_map(|peer| peer.allowed_ips.iter().copied()).collect();
    prefixes.sort_by_key(|prefix| (std::cmp::Reverse(prefix.prefix_len()), *prefix));
    prefixes
}

/// Checks that the system can have an interface of this name.
///
/// # Errors
/// macOS has no other names than `utun` with a number.
pub(crate) fn check_name(name: &InterfaceName) -> Result<(), RouteError> {
    if cfg!(target_os = "macos") { check_utun(name.as_str()) } else { Ok(()) }
}

fn check_utun(name: &str) -> Result<(), RouteError> {
    const RARELY_USED: u32 = 70;
    if is_utun(name) {
        return Ok(());
    }
    Err(RouteError::NotUtun { name: name.to_owned(), number: RARELY_USED })
}

/// Reports whether macOS can have a tunnel of this name: `utun` with a number.
pub fn is_utun(name: &str) -> bool {
    let number = name.strip_prefix("utun").and_then(|number| number.parse::<u16>().ok());
    number.is_some_and(|number| format!("utun{number}") == name)
}

/// Reports whether the kernel adds a route for the network of an address. A single IPv4 address gets an entry
/// in the local table only, and so does one of a network that begins with 0 (fib_add_ifaddr).
pub(crate) fn has_connected_route(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => net.prefix_len() < net.max_prefix_len() && net.network().octets()[0] != 0,
        IpNet::V6(_) => true,
    }
}

impl From<RouteError> for exit::Error {
    fn from(error: RouteError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

#[cfg(test)]
pub(crate) mod tests;
