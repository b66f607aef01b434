//! A daemon that is started again by its service manager, and goes on where the one before it stopped.
//!
//! The service manager is a stand-in of the lab: it takes descriptors over a notification socket, keeps them,
//! and hands them to the next process of the real binary; on a private bus it announces what it is about to
//! do.
//!
//! ```text
//!   A, started again   eth0 ───────────── veth ───────────── eth0  B, which is not
//!                192.0.2.1/24                            192.0.2.2/24
//!                weft0 ═════════════════ tunnel ═════════════════ weft0
//!                10.77.0.1/24                            10.77.0.2/24
//! ```
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod any_call;
mod crash;
mod files;
mod goes_on;
mod host;
mod many_peers;
#[path = "../dns/name_server.rs"]
mod name_server;
mod names;
mod stops;
mod store;
mod watch;
mod world;
