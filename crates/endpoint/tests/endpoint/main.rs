//! Two endpoints in virtual time, and one against segments that a test writes.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod by_section;
mod congestion;
mod hostile;
mod memory;
mod simulation;
mod wire;
mod world;
