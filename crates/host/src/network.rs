//! The network around the tunnel while it changes: addresses come and go, routes move, links go up and down, the
//! machine sleeps and wakes.
//!
//! [`Watch`] tells that something changed, a [`Follower`] finds out what of it matters to which peer. Both are of the
//! control thread: it tells the event loop which ways changed, and the device its new MTU.

use std::io;
use std::time::Duration;

mod coalesce;
mod follower;

#[cfg_attr(target_os = "linux", path = "network/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "network/unsupported.rs")]
mod platform;

pub use follower::{Follower, MtuPolicy, Reaction, Way};
pub use platform::{Watch, way_to};

/// What changed since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Addresses of other interfaces were added or removed.
    pub addresses: bool,
    /// Routes beside those through the own device, or rules, were added or removed.
    pub routes: bool,
    /// Other interfaces came, went, changed their MTU, or went up or down.
    pub links: bool,
    /// More happened than the system could tell: anything may have changed.
    pub missed: bool,
    /// The machine slept, and its clocks stood still for so long.
    pub slept: Option<Duration>,
    /// The wall clock was set forward by so much.
    pub clock_set_forward: Option<Duration>,
    /// The own device has another MTU.
    pub device_mtu: Option<u32>,
    /// The own device was deleted.
    pub device_gone: bool,
    /// The own device was moved to another network namespace, where it lives on.
    pub device_left: bool,
}

impl Change {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether ways to peers may have changed.
    pub fn concerns_ways(&self) -> bool {
        self.addresses || self.routes || self.links || self.missed || self.slept.is_some()
    }

    /// Adds what changed later.
    fn add(&mut self, later: Self) {
        self.addresses |= later.addresses;
        self.routes |= later.routes;
        self.links |= later.links;
        self.missed |= later.missed;
        self.slept = sum(self.slept, later.slept);
        self.clock_set_forward = sum(self.clock_set_forward, later.clock_set_forward);
        self.device_mtu = later.device_mtu.or(self.device_mtu);
        self.device_gone |= later.device_gone;
        self.device_left |= later.device_left;
    }
}

fn sum(before: Option<Duration>, later: Option<Duration>) -> Option<Duration> {
    match (before, later) {
        (Some(before), Some(later)) => Some(before + later),
        (before, later) => before.or(later),
    }
}

/// Why the network cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// A socket, timer or thread was refused.
    #[error("cannot {what}: {source}; changes of addresses and routes go unnoticed")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// This platform cannot do it yet.
    #[error("weft does not watch addresses and routes on this platform yet")]
    Unsupported,
}
