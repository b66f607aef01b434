//! A running interface as Prometheus, a browser, a health check and the journal see it.
//!
//! ```text
//!   namespace a                                              namespace b
//!   curl, prometheus, chromium
//!        │ 127.0.0.1:9586
//!       weft  192.0.2.1  eth0 ──────── veth ──────── eth0  192.0.2.2  weft
//!       weft0 10.77.0.1  ══════════════ tunnel ══════════════  10.77.0.2 weft0
//! ```
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cipher;
mod contrib;
mod journal;
mod page;
mod prometheus;
mod server;
mod support;
