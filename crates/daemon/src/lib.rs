//! weft, a WireGuard VPN daemon: everything around the packet path of `weft_tun` and `weft_tunnel`.
//!
//! The binary `weft` is a thin shell around this library; `weft demo`, the tests and the bench use it too.

pub mod assets;
pub mod background;
pub mod carried_over;
pub mod cli;
pub mod control;
pub mod dataplane;
pub mod demo;
pub mod down;
pub mod drop_in;
pub mod interface;
mod keeper;
pub mod logging;
pub mod metrics;
mod recording;
pub mod scheduling;
mod secrecy;
pub mod service_manager;
pub mod status;
pub mod up;

// A daemon with the clock of the tests would never end a session.
const _: () = assert!(!weft_tunnel::MOCK_CLOCK, "weft is built with the feature `mock-instant`");
