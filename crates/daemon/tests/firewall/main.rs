//! What gets past the rules of `weft_host::firewall`, asked of the kernel: a machine between the world and a
//! client, each a network namespace, and a TUN in place of the tunnel.
//!
//! ```text
//!        client                         machine                          internet
//!   192.168.93.2  fd93::2  ─── lan  192.168.93.1  fd93::1
//!                                   198.51.100.2  2001:db8:1::2  wan ─── 198.51.100.1  2001:db8:1::1
//!                                   10.77.0.1     fd77::1  weft0
//!                                                           │
//!                                                    the test reads it
//! ```
//!
//! Every route that there is leads past the tunnel unless a test says otherwise, so whatever the rules let
//! through arrives at the internet's end of the cable and is seen there, whatever its destination.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod attempts;
mod capture;
mod scenario;
mod tun;
mod world;

mod full_tunnel;
mod leaks;
mod lifetime;
mod mss;
mod rules;
