//! What weft does to the system around a tunnel, and that it takes all of it back.
//!
//! ```text
//!   client                                      server
//!   default route via eth0                      203.0.113.1  2001:db8:ff::1   the tunnel's endpoint
//!                                               198.51.100.1 2001:db8:aa::1   "the Internet"
//!   192.0.2.1  2001:db8::1                      192.0.2.2  2001:db8::2
//!        eth0 ────────────────── veth ────────────────── eth0
//!       weft0 ══════════════════ tunnel ════════════════ weft0
//!   10.77.0.1  fd77::1                          10.77.0.2  fd77::2
//! ```
//!
//! The endpoint is reached by the default route alone: a tunnel that took it over for its own packets would
//! go round in circles. Records of what was done are in a directory of each test's own (WEFT_RUNTIME_DIR),
//! and nothing is done to this machine's own namespaces.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod background;
mod beside;
mod beside_wg_quick;
mod blocklist;
mod complete;
mod crash;
mod dns;
mod dry_run;
mod expiry;
mod full_tunnel;
mod hang_up;
mod hanging;
mod hooks;
mod json;
mod many_peers;
mod many_routes;
mod misrouted;
mod namespaces;
mod obstacles;
mod own_file;
mod peer;
mod pre_up;
mod reload;
mod save;
mod silent;
mod support;
mod undone;
mod untrusted;
mod waiting;
mod zones;
