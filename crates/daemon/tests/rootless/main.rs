//! Tunnels without root: `weft exec` of an ordinary user, against a gateway in another namespace.
//!
//! ```text
//!   client                                gateway
//!   wan 192.0.2.1 ─────────────────────── wan 192.0.2.2      weft up: 10.77.0.1, fd77::1
//!   weft exec, as a made-up user          lo 203.0.113.1, 2001:db8:ff::1: behind the tunnel
//!     └─ namespaces: 10.77.0.2, fd77::2
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

#[path = "../firewall/capture.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod capture;
mod command;
mod device;
mod join;
mod names;
mod network;
mod own_stack;
mod ports;
mod proxy;
mod refusals;
mod replaced;
mod running;
mod support;
mod underlay;
mod with_proxy;
