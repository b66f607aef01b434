//! weft under wg(8) and wg-quick(8), beside wireguard-go under the same.
//!
//! A machine is a network namespace with a private /run, so that every interface can have the same name.
//! Where two of them talk, a cable joins them:
//!
//! ```text
//!            machine a                                    machine b
//!   ┌─────────────────────────┐                 ┌─────────────────────────┐
//!   │ wg0     10.9.0.1        │                 │ wg0     10.9.0.2        │
//!   │   │     fd09::1         │                 │   │     fd09::2         │
//!   │ weft :51820        eth0 ├─────────────────┤ eth0        weft :51820 │
//!   │                192.0.2.1│                 │192.0.2.2                │
//!   └─────────────────────────┘                 └─────────────────────────┘
//! ```
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod support;

mod background;
mod commands_of_up;
mod confinement;
mod dump;
mod handed_in;
mod hostile;
mod many_peers;
mod moving;
mod predecessor;
mod refusals;
mod secrets;
mod set;
mod show;
mod syncconf;
mod wg_quick;
