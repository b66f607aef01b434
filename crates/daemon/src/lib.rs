//! weft, a WireGuard VPN daemon: everything around the packet path of `weft_tun` and `weft_tunnel`.
//!
//! The binary `weft` only parses the command line and calls this library; `weft demo`, the tests and the
//! bench use it too.

pub mod assets;
pub mod background;
pub mod carried_over;
pub mod cipher;
pub mod cli;
pub mod control;
pub mod demo;
pub mod down;
pub mod drop_in;
#[cfg(target_os = "linux")]
pub mod exec;
#[cfg(target_os = "linux")]
mod foreign;
pub mod interface;
pub mod logging;
pub mod metrics;
mod network;
#[cfg(target_os = "linux")]
pub mod proxy;
mod recording;
pub mod scheduling;
mod secrecy;
pub mod service;
pub mod service_manager;
#[cfg(target_os = "linux")]
mod speedtest;
pub mod status;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(not(target_os = "linux"))]
pub use unsupported::{exec, proxy, threads};
#[cfg(not(target_os = "linux"))]
use unsupported::{foreign, speedtest};
#[cfg(target_os = "linux")]
pub mod threads;
pub mod up;
pub mod wiping_allocator;

// The mock clock of the tests stands still: with it a session would never expire.
const _: () = assert!(!weft_tunnel::MOCK_CLOCK, "weft is built with the feature `mock-instant`");
