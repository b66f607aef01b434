//! Sets the rules of the system's packet filter: for a full tunnel, the kill switch and the MSS clamp.
//!
//! To be called on a control thread only: every call waits for the system's answer. The rules belong to the
//! system and not to the process, so that a kill switch survives the daemon; `remove` removes them.
//! docs/FIREWALL.md shows them.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use weft_config::InterfaceName;

mod describe;
mod error;
#[cfg(target_os = "linux")]
mod linux;
mod local;
#[cfg(any(all(test, target_os = "linux"), target_os = "macos", target_os = "freebsd"))]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd")),
    allow(dead_code, unreachable_pub, reason = "only tests use it here")
)]
mod pf;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
mod program;
#[cfg(test)]
mod tests;
#[cfg(any(all(test, target_os = "linux"), windows))]
#[cfg_attr(not(windows), allow(dead_code, unreachable_pub, reason = "only tests use it here"))]
mod wfp;

#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
use pf::system as platform;
#[cfg(windows)]
use wfp::system as platform;

pub use error::FirewallError;
pub(crate) use local::is_local;
#[cfg(target_os = "linux")]
pub(crate) use platform::translated;
#[cfg(target_os = "linux")]
pub use platform::{Contents, contents, interfaces, rules_added, rules_of_others};
pub(crate) use platform::{RECOGNISES, removing_command};
pub use platform::{apply, check, present, remove};

/// All rules that are wanted for one interface. Equal rules need not be applied again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The name of the tunnel's device: the rules apply whether or not the device exists.
    pub interface: InterfaceName,
    /// What a default route through the tunnel needs.
    pub full_tunnel: Option<FullTunnel>,
    /// The kill switch: no packet leaves outside the tunnel.
    pub kill_switch: Option<KillSwitch>,
    /// Whether the MSS of TCP connections that are forwarded through the tunnel is clamped to the MTU of
    /// their route.
    pub mss_clamp: bool,
    /// The MTU of the device, in bytes, where the packet filter cannot ask for the MTU of a route, or the
    /// device has less than 1280.
    pub mtu: Option<u16>,
}

/// The rules that go with a default route through the tunnel, as in wg-quick(8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTunnel {
    /// The mark of the tunnel's UDP packets, by which routing keeps them out of the tunnel.
    pub mark: NonZeroU32,
    /// The device's addresses, to which hosts outside the tunnel may not send.
    pub addresses: Vec<IpAddr>,
    /// Whether there is an IPv4 default route.
    pub ipv4: bool,
    /// Whether there is an IPv6 default route.
    pub ipv6: bool,
}

/// The kill switch: packets leave only through the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillSwitch {
    /// How the tunnel's own packets are recognised.
    pub own: OwnPackets,
    /// Which packets may go to local networks.
    pub local: Local,
}

/// How the tunnel's own encrypted packets are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnPackets {
    /// UDP with this mark, which only privileged programs can set. This is the preferred way.
    Marked(NonZeroU32),
    /// UDP to the peers' addresses and ports, for a device without a mark. Other programs can send there too,
    /// and packets to a peer that roams are blocked.
    To(BTreeSet<SocketAddr>),
    /// UDP of the program that sets the rules.
    Program,
}

/// By what the packet filter of a system can recognise the tunnel's own packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each system has one")]
pub(crate) enum Recognises {
    /// The mark of their socket, if there is one.
    Marks,
    /// Where they go.
    Endpoints,
    /// The program that sends them.
    Programs,
}

impl OwnPackets {
    /// Recognises packets by the mark if the device has one (0: none), else by the endpoints.
    pub fn new(mark: u32, endpoints: impl IntoIterator<Item = SocketAddr>) -> Self {
        match NonZeroU32::new(mark) {
            Some(mark) => Self::Marked(mark),
            None => Self::To(as_sent(endpoints)),
        }
    }
}

/// Whether the kill switch allows packets to local networks: private, link-local and multicast addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Packets to local networks are blocked (`KillSwitch = on`).
    Blocked,
    /// Packets to local networks are allowed (`KillSwitch = allow-local`), except DNS: the local router would
    /// see what is looked up.
    Allowed {
        /// Name servers in local networks that may be queried nevertheless, from the configuration (`DNS =`).
        dns: BTreeSet<IpAddr>,
    },
}

/// The address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 packets.
    Ip,
    /// IPv6 packets.
    Ip6,
    /// IPv4 and IPv6 packets.
    Inet,
}

impl Family {
    /// Returns its name in nft(8).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        }
    }
}

/// A table of nftables; or an anchor of pf or a sublayer of WFP, which are for both families.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Table {
    /// The family of the packets that it sees.
    pub family: Family,
    pub name: String,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.as_str(), self.name)
    }
}

/// The tables in force for an interface, whichever program made them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    pub tables: Vec<Table>,
    /// The number of packets that the kill switch has blocked since it was last applied, 0 on Windows, which
    /// does not count them; `None`: there is no kill switch.
    pub blocked: Option<u64>,
}

impl Present {
    /// Reports whether there are no tables.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }
}

impl Rules {
    /// Makes an empty set of rules for this interface.
    pub fn none(interface: InterfaceName) -> Self {
        Self { interface, full_tunnel: None, kill_switch: None, mss_clamp: false, mtu: None }
    }

    /// Reports whether no rules are wanted.
    pub fn is_empty(&self) -> bool {
        let full = self.full_tunnel.as_ref().is_some_and(|full| full.ipv4 || full.ipv6);
        !full && self.kill_switch.is_none() && !self.mss_clamp
    }
}

/// What the packet filter has of the rules of an interface; it is not looked at here.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {}

/// Returns what the packet filter has of these rules.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn contents(_: &Rules) -> Result<Contents, FirewallError> {
    Ok(Contents {})
}

/// Returns `None` if there are no rules of the interface, and these are wanted. What others add is not seen.
///
/// # Errors
/// Those of [`FirewallError`].
#[cfg(not(target_os = "linux"))]
pub fn rules_added(rules: &Rules, _: &Contents) -> Result<Option<usize>, FirewallError> {
    Ok((rules.is_empty() || !present(&rules.interface)?.is_empty()).then_some(0))
}

/// Returns nothing: what others add is not seen.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn rules_of_others(_: &Contents) -> Result<Vec<String>, FirewallError> {
    Ok(Vec::new())
}

/// Returns the addresses as they appear in packets: IPv4-mapped addresses as IPv4, and without scopes.
fn as_sent(endpoints: impl IntoIterator<Item = SocketAddr>) -> BTreeSet<SocketAddr> {
    endpoints
        .into_iter()
        .map(|endpoint| SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port()))
        .collect()
}

/// Whether the rules are still there when the machine has started again, where records may be gone.
pub(crate) const OUTLIVE_THE_MACHINE: bool = cfg!(windows);

/// The name prefix of tables that go with a default route, as in wg-quick.
const FULL_TUNNEL_PREFIX: &str = "wg-quick-";

/// Returns the table for a default route of this family.
fn full_tunnel_table(interface: &InterfaceName, is_ipv6: bool) -> Table {
    let family = if is_ipv6 { Family::Ip6 } else { Family::Ip };
    Table { family, name: table_name(FULL_TUNNEL_PREFIX, interface) }
}

/// Returns the name of a table for an interface. nft(8) reads no `=` and no `+` in a name: their codes stand
/// for them, behind a character that no name of an interface has.
fn table_name(prefix: &str, interface: &InterfaceName) -> String {
    format!("{prefix}{interface}").replace('=', "/3d").replace('+', "/2b")
}

/// Returns the name of the interface that a table's name has behind its prefix.
#[cfg(target_os = "linux")]
fn interface_of(table: &str) -> String {
    table.replace("/3d", "=").replace("/2b", "+")
}

/// Returns nothing: the rules of other interfaces are not listed here.
#[cfg(not(target_os = "linux"))]
pub fn interfaces() -> Vec<InterfaceName> {
    Vec::new()
}
