//! Follows changes of the network around the tunnel: of addresses, routes and links, and when the machine
//! sleeps and wakes.
//!
//! [`Watch`] reports that something changed; a [`Follower`] finds out which peers a change concerns. Both
//! belong to the control thread, which reports changed routes to the event loop, and sets the device's new
//! MTU.

use std::io;
use std::time::Duration;

#[cfg(any(target_os = "linux", windows))]
mod clocks;
mod coalesce;
mod follower;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows))]
mod watch;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
mod bsd;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
mod descriptors;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(all(test, target_os = "linux"), windows))]
#[cfg_attr(not(windows), allow(dead_code, reason = "only tests use it here"))]
mod notices;
#[cfg(any(test, target_os = "macos", target_os = "freebsd"))]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd")),
    allow(dead_code, reason = "only tests use it here")
)]
mod rtsock;
#[cfg(any(test, target_os = "macos", target_os = "freebsd", windows))]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd", windows)),
    allow(dead_code, unreachable_pub, reason = "only tests use it here")
)]
mod way;
#[cfg(windows)]
mod windows;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
use bsd as platform;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
use descriptors as events;
#[cfg(windows)]
use windows as events;

#[cfg(target_os = "linux")]
use linux as platform;

pub use follower::{Follower, MtuPolicy, Reaction, Way};
#[cfg(target_os = "linux")]
pub use platform::Observer;
#[cfg(not(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows)))]
pub use platform::Watch;
#[cfg(not(any(target_os = "macos", target_os = "freebsd", windows)))]
pub use platform::way_to;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd", windows))]
pub use watch::Watch;
#[cfg(any(target_os = "macos", target_os = "freebsd", windows))]
pub use way::way_to;

/// What changed since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkChange {
    /// Addresses of other interfaces were added or removed.
    pub addresses: bool,
    /// Routes other than those through weft's device, or rules, were added or removed.
    pub routes: bool,
    /// Other interfaces were added or removed, changed their MTU, or went up or down.
    pub links: bool,
    /// Events were lost: anything may have changed.
    pub missed: bool,
    /// How long the machine slept, if it did.
    pub slept: Option<Duration>,
    /// By how much the wall clock was set forward, if it was.
    pub clock_set_forward: Option<Duration>,
    /// The new MTU of weft's device, in bytes.
    pub device_mtu: Option<u32>,
    /// weft's device was deleted.
    pub device_gone: bool,
    /// weft's device was moved to another network namespace, where it still exists.
    pub device_left: bool,
    /// weft's device is up again after it was down, without the routes that it had.
    pub device_up: bool,
    /// Rules like those of a full tunnel, or default routes that they lead to, were removed or replaced.
    pub rules_removed: bool,
    /// weft's device was set down or renamed, or an address of it was removed.
    pub device_undone: bool,
    /// Addresses, routes or settings of weft's device changed.
    pub device_changed: bool,
}

/// [`NetworkChange::default`], for constants of tests.
#[cfg(test)]
const NO_CHANGE: NetworkChange = NetworkChange {
    addresses: false,
    routes: false,
    links: false,
    missed: false,
    slept: None,
    clock_set_forward: None,
    device_mtu: None,
    device_gone: false,
    device_left: false,
    device_up: false,
    rules_removed: false,
    device_undone: false,
    device_changed: false,
};

impl NetworkChange {
    /// Reports whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reports whether routes to peers may have changed.
    pub fn concerns_ways(&self) -> bool {
        self.addresses || self.routes || self.links || self.missed || self.slept.is_some()
    }

    /// Adds a later change.
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
        self.device_up |= later.device_up;
        self.rules_removed |= later.rules_removed;
        self.device_undone |= later.device_undone;
        self.device_changed |= later.device_changed;
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
        /// The action that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}
