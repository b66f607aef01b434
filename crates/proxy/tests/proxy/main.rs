//! A proxy on a host without a way to the servers, whose tunnel is another namespace.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod forward;
mod http;
mod names;
mod socks5;
mod support;
