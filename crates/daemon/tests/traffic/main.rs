//! Two daemons in two namespaces, and the kernel's own TCP and UDP through them.
//!
//! ```text
//!   namespace a                                                               namespace b
//!
//!   kernel TCP, UDP                                                       kernel TCP, UDP
//!   10.77.0.1  fd77::1                                                 10.77.0.2  fd77::2
//!          │                                                                     │
//!        weft0                                                                 weft0
//!          │                                                                     │
//!         weft   192.0.2.1                                       192.0.2.2      weft
//!          └──── 2001:db8::1  eth0 ─────── veth ─────── eth0  2001:db8::2 ───────┘
//! ```
//!
//! Every stream and datagram carries content that knows its place, so that what is lost, changed, repeated or
//! displaced is noticed; and every packet that one part of weft counted has to be found in the next one's
//! counters. Losses outside of weft (a full TUN ring, a full socket buffer) are told by the kernel's
//! counters, and those of an emulated link, which takes the place of the veth in `round_trips`, by its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod accounts;
mod capture;
mod content;
mod flood;
mod hang_up;
mod lifecycle;
mod limits;
mod live_changes;
mod lying;
#[cfg(not(feature = "portable"))]
mod missing_features;
mod order;
mod panics;
mod refusals;
mod reload;
mod round_trips;
mod routes;
mod scarcity;
mod speedtest;
mod standstill;
mod status;
mod support;
mod two_hundred_peers;
mod unread_log;
