//! The addresses, the routes and the MTU of the device, as the operating system knows them.
//!
//! Called on a control thread only: every call waits for the system's answer. [`crate::Plan`] decides what is added,
//! and takes it away again.

use std::fmt;
use std::io;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weft_config::{Interface, Peer, Table};

use weft_config::exit;

#[cfg_attr(target_os = "linux", path = "routes/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "routes/unsupported.rs")]
mod platform;

pub use platform::Netlink;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name when it was found.
    pub name: String,
    /// The system's number for it.
    pub index: u32,
    /// Its MTU when it was found.
    pub mtu: u32,
}

/// How much a device may hold and hand over at once. `None` leaves the system's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Packets (or super-packets) that wait for a reader.
    pub tx_queue_len: Option<u32>,
    /// Bytes of a super-packet that TCP hands over at most, headers included.
    pub gso_max_bytes: Option<u32>,
    /// Segments of such a super-packet at most.
    pub gso_max_segments: Option<u32>,
}

/// Why the system's network configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// There is no way to the kernel's routing.
    #[error("cannot open a netlink socket: {0}; the kernel or the sandbox has to allow AF_NETLINK")]
    Open(#[source] io::Error),
    /// There is no such device.
    #[error("there is no interface {0} in this network namespace")]
    NoLink(String),
    /// The kernel refused.
    #[error("cannot {action}: {error}; {advice}")]
    Refused {
        /// What was tried, with its address, route and interface.
        action: String,
        /// Why not.
        error: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The kernel did not answer.
    #[error("cannot {action}: the kernel did not answer within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// What was tried.
        action: String,
    },
    /// This platform cannot do it yet.
    #[error("cannot {action}: weft does not set addresses and routes on this platform yet")]
    Unsupported {
        /// What was tried.
        action: String,
    },
}

/// A netlink request is answered at once; waiting longer means that the answer was lost.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

impl RouteError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        let permission = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        match self {
            Self::Open(error) | Self::Refused { error, .. } if permission(error) => exit::Code::Permission,
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
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// That of a prefix.
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
    /// The packets that it is for.
    pub family: Family,
    /// Its place: rules are asked in ascending order.
    pub priority: u32,
    /// What it does.
    pub kind: RuleKind,
}

/// What a rule does. Prints as ip-rule(8) is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    /// Packets that do not have the mark ask the table.
    Unmarked {
        /// The mark.
        mark: u32,
        /// The table.
        table: u32,
    },
    /// Packets ask the main table, but pass over its default routes.
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

/// A rule of policy routing as it is found, whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRule {
    /// The packets that it is for.
    pub family: Family,
    /// Its place.
    pub priority: u32,
    /// The mark that it looks for, or looks not for.
    pub mark: Option<u32>,
    /// Whether it is for the packets that it does not describe.
    pub is_inverted: bool,
    /// The table that it leads to; 0: none.
    pub table: u32,
}

impl FoundRule {
    /// Whether it is this one, at its place.
    pub fn is(&self, rule: &Rule) -> bool {
        *self == Self::from(rule)
    }
}

impl From<&Rule> for FoundRule {
    /// How it is found when it is in force.
    fn from(rule: &Rule) -> Self {
        let (mark, is_inverted, table) = match rule.kind {
            RuleKind::Unmarked { mark, table } => (Some(mark), true, table),
            RuleKind::MainWithoutDefault => (None, false, MAIN_TABLE),
        };
        Self { family: rule.family, priority: rule.priority, mark, is_inverted, table }
    }
}

/// The kernel's number of the main table (rt_tables: RT_TABLE_MAIN).
pub const MAIN_TABLE: u32 = 254;

/// The table and the prefixes to route there, longest first; `None` if there are no routes to add.
pub fn planned_routes(interface: &Interface, peers: &[Peer]) -> Option<(u32, Vec<IpNet>)> {
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
    let mut prefixes: Vec<IpNet> = peers
        .iter()
        .flat_map(|peer| peer.allowed_ips.iter().copied())
        .filter(|prefix| !connected.iter().any(|net| net.contains(prefix)))
        .collect();
    prefixes.sort_by_key(|prefix| (std::cmp::Reverse(prefix.prefix_len()), *prefix));
    Some((table, prefixes))
}

/// A single IPv4 address gets an entry in the local table only.
fn has_connected_route(net: IpNet) -> bool {
    matches!(net, IpNet::V6(_)) || net.prefix_len() < net.max_prefix_len()
}

impl From<RouteError> for exit::Error {
    fn from(error: RouteError) -> Self {
        Self::new(error.exit_code(), error)
    }
}

#[cfg(test)]
mod tests;
