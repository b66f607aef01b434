//! What weft puts into the system's packet filter: the rules of a full tunnel, the kill switch, the MSS clamp.
//!
//! Called on a control thread only: every call waits for the system's answer. The rules belong to the system and
//! not to the process, so that a kill switch outlives the daemon; `remove` takes them away. docs/FIREWALL.md shows
//! them as `nft list ruleset` does.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use weft_config::InterfaceName;

use weft_config::exit;

mod describe;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(test)]
mod tests;
#[cfg(not(target_os = "linux"))]
mod unsupported;

#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(not(target_os = "linux"))]
use unsupported as platform;

pub use platform::{apply, check, list, present, remove};

/// Everything that is wanted for one interface. Equal rules need not be applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The tunnel's device, by name: rules hold whether or not it is there.
    pub interface: InterfaceName,
    /// What a default route through the tunnel needs.
    pub full_tunnel: Option<FullTunnel>,
    /// Nothing leaves past the tunnel.
    pub kill_switch: Option<KillSwitch>,
    /// TCP that is forwarded through the tunnel learns how large its segments may be.
    pub mss_clamp: bool,
}

/// The companions of a default route through the tunnel, as wg-quick(8) sets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTunnel {
    /// The mark of the tunnel's UDP packets, by which routing keeps them out of the tunnel.
    pub mark: NonZeroU32,
    /// The device's addresses, which nobody outside the tunnel may send to.
    pub addresses: Vec<IpAddr>,
    /// There is a default route of IPv4.
    pub ipv4: bool,
    /// There is a default route of IPv6.
    pub ipv6: bool,
}

/// Nothing leaves except through the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillSwitch {
    /// How the tunnel's own packets are told from those of others.
    pub own: OwnPackets,
    /// What may go to local networks.
    pub local: Local,
}

/// How the tunnel's own encrypted packets are told from those of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnPackets {
    /// UDP with this mark, which only privileged programs can set. The better way.
    Marked(NonZeroU32),
    /// UDP to the peers' addresses and ports, for a device without a mark. Other programs can send there too, and a peer
    /// that moves is not answered.
    To(BTreeSet<SocketAddr>),
}

impl OwnPackets {
    /// By the mark where the device has one (0: none), else by the endpoints.
    pub fn new(mark: u32, endpoints: impl IntoIterator<Item = SocketAddr>) -> Self {
        match NonZeroU32::new(mark) {
            Some(mark) => Self::Marked(mark),
            None => Self::To(as_sent(endpoints)),
        }
    }
}

/// Whether the kill switch spares local networks: private, link-local and multicast addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// It does not (`KillSwitch = on`).
    Blocked,
    /// It does (`KillSwitch = allow-local`), except for DNS, which would tell the local router what is looked up.
    Allowed {
        /// Name servers of local networks that may be asked all the same: those of the configuration (`DNS =`).
        dns: BTreeSet<IpAddr>,
    },
}

/// The packets that a table sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Those of IPv4.
    Ip,
    /// Those of IPv6.
    Ip6,
    /// Those of both.
    Inet,
}

impl Family {
    /// The name that nft(8) knows it by.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        }
    }
}

/// A table of the packet filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// The packets that it sees.
    pub family: Family,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.as_str(), self.name)
    }
}

/// What is in force for an interface, whoever put it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Its tables.
    pub tables: Vec<Table>,
    /// Packets that the kill switch held back since it was last applied; `None`: there is no kill switch.
    pub blocked: Option<u64>,
}

impl Present {
    /// Nothing is there.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

/// Why the packet filter could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The program that changes it is not installed.
    #[error("cannot {action}: there is no program nft; install the package nftables")]
    Missing {
        /// What was tried.
        action: String,
    },
    /// The program could not be run.
    #[error("cannot {action}: cannot run nft: {error}")]
    Run {
        /// What was tried.
        action: String,
        /// Why not.
        error: io::Error,
    },
    /// The program did not end.
    #[error("cannot {action}: nft did not end within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// What was tried.
        action: String,
    },
    /// A permission is missing.
    #[error("cannot {action}: the kernel does not permit it; run weft as root or give it CAP_NET_ADMIN")]
    Permission {
        /// What was tried.
        action: String,
    },
    /// The kernel has no nftables, or not all that the rules are made of.
    #[error(
        "cannot {action}: the kernel lacks a part of nftables ({message}); load its modules (`modprobe -a nf_tables \
         nft_ct nft_fib_ipv4 nft_fib_ipv6 nft_reject_inet`) or see that the kernel has them"
    )]
    Kernel {
        /// What was tried.
        action: String,
        /// What nft said.
        message: String,
    },
    /// It was refused.
    #[error("cannot {action}: nft says: {message}")]
    Refused {
        /// What was tried.
        action: String,
        /// What nft said.
        message: String,
    },
    /// The answer is not what nft gives.
    #[error(
        "cannot {action}: the answer of nft is not understood: {error}; see `nft --version` (1.0 or newer)"
    )]
    Answer {
        /// What was tried.
        action: String,
        /// Why not.
        error: serde_json::Error,
    },
    /// This platform cannot do it yet.
    #[error("cannot {action}: weft does not set firewall rules on this platform yet")]
    Unsupported {
        /// What was tried.
        action: String,
    },
}

/// A change takes milliseconds, with ten thousand endpoints too, and seconds where other work keeps every core busy; longer
/// means that something holds the kernel's lock.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

impl FirewallError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Permission { .. } => exit::Code::Permission,
            Self::Run { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                exit::Code::Permission
            }
            _ => exit::Code::Failure,
        }
    }
}

impl Rules {
    /// No rules for this interface.
    pub fn none(interface: InterfaceName) -> Self {
        Self { interface, full_tunnel: None, kill_switch: None, mss_clamp: false }
    }

    /// Nothing is wanted.
    pub fn is_empty(&self) -> bool {
        let full = self.full_tunnel.as_ref().is_some_and(|full| full.ipv4 || full.ipv6);
        !full && self.kill_switch.is_none() && !self.mss_clamp
    }
}

/// The addresses as they stand in packets: IPv4 as such, and no scopes.
fn as_sent(endpoints: impl IntoIterator<Item = SocketAddr>) -> BTreeSet<SocketAddr> {
    endpoints
        .into_iter()
        .map(|endpoint| SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port()))
        .collect()
}

/// What the names of tables begin with that hold a kill switch or an MSS clamp.
const OWN_PREFIX: &str = "weft-";
/// What the names of tables begin with that go with a default route, as wg-quick names them.
const FULL_TUNNEL_PREFIX: &str = "wg-quick-";

/// The table for the kill switch and the MSS clamp.
fn own_table(interface: &InterfaceName) -> Table {
    Table { family: Family::Inet, name: format!("{OWN_PREFIX}{interface}") }
}

/// The table for a default route of this family.
fn full_tunnel_table(interface: &InterfaceName, is_ipv6: bool) -> Table {
    let family = if is_ipv6 { Family::Ip6 } else { Family::Ip };
    Table { family, name: format!("{FULL_TUNNEL_PREFIX}{interface}") }
}
