//! DNS settings reach what resolves names on a machine, and go again; and names that change are followed.
//!
//! Nothing here touches this machine's own resolver: files stand in temporary directories, programs and buses
//! are made for the test, and what has to be at its usual place is so in a mount namespace only.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod check;
mod crash;
mod daemon;
mod file;
mod name_server;
mod names;
mod namespaces;
mod resolvconf;
mod resolved;
mod support;
