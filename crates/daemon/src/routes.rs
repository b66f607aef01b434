//! The addresses, the routes and the MTU of the device, as the operating system knows them.
//!
//! Called on a control thread only: every call waits for the system's answer. What was added is kept in
//! [`Applied`], so that exactly that is taken away again.

use std::io;

use ipnet::IpNet;

use crate::config::{Config, Interface, Peer, Table};
use crate::exit;

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

/// Something that was added to the system.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Address { link: Link, address: IpNet },
    Route { link: Link, prefix: IpNet, table: u32 },
}

/// Everything that was added to the system and has to be taken away again, in order.
#[derive(Debug, Default)]
pub struct Applied {
    steps: Vec<Step>,
}

impl Applied {
    /// Nothing is left to undo.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Takes away what was added, the last first, and goes on when a part of it fails. What is gone already (as
    /// when the device vanished) is no error, and a second call does nothing.
    pub fn undo(&mut self, netlink: &Netlink) -> Vec<RouteError> {
        let mut failures = Vec::new();
        while let Some(step) = self.steps.pop() {
            let removed = match &step {
                Step::Address { link, address } => netlink.remove_address(link, *address),
                Step::Route { link, prefix, table } => netlink.remove_route(link, *prefix, *table),
            };
            failures.extend(removed.err());
        }
        failures
    }
}

impl Netlink {
    /// Gives the device its addresses, sets it up with this MTU, and adds the routes to the peers. A failure takes
    /// back what was done.
    pub fn apply(&self, link: &Link, config: &Config, mtu: u16) -> Result<Applied, RouteError> {
        let mut applied = Applied::default();
        match self.apply_steps(link, config, mtu, &mut applied) {
            Ok(()) => Ok(applied),
            Err(error) => {
                for failure in applied.undo(self) {
                    tracing::warn!("while taking back a half-made configuration: {failure}");
                }
                Err(error)
            }
        }
    }

    fn apply_steps(
        &self,
        link: &Link,
        config: &Config,
        mtu: u16,
        applied: &mut Applied,
    ) -> Result<(), RouteError> {
        // The MTU comes first: with less than 1280 the kernel takes no IPv6 address.
        self.set_mtu(link, mtu)?;
        for &address in &config.interface.addresses {
            self.add_address(link, address, applied)?;
        }
        self.set_up(link)?;
        if let Some((table, prefixes)) = planned_routes(&config.interface, &config.peers) {
            for prefix in prefixes {
                self.add_route(link, prefix, table, applied)?;
            }
        }
        Ok(())
    }

    /// Adds an address and remembers it.
    pub fn add_address(&self, link: &Link, address: IpNet, applied: &mut Applied) -> Result<(), RouteError> {
        self.create_address(link, address)?;
        applied.steps.push(Step::Address { link: link.clone(), address });
        Ok(())
    }

    /// Adds a route to a prefix through the device and remembers it; one that is there already through the same
    /// device stays as it is, and is nobody's to undo.
    pub fn add_route(
        &self,
        link: &Link,
        prefix: IpNet,
        table: u32,
        applied: &mut Applied,
    ) -> Result<(), RouteError> {
        if self.create_route(link, prefix, table)? {
            applied.steps.push(Step::Route { link: link.clone(), prefix, table });
        }
        Ok(())
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

#[cfg(test)]
mod tests;
