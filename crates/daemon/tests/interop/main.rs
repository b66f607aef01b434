//! weft and wireguard-go with a tunnel between them, in network namespaces of this process.
//!
//! Most tests have two namespaces and a cable; `roaming.rs` has a router in between, `several_peers.rs` a
//! third end.
//!
//! ```text
//!           weft's namespace                            wireguard-go's namespace
//!   ┌─────────────────────────────┐                 ┌─────────────────────────────┐
//!   │ weft0   10.7.0.1  fd07::1   │                 │ wgo…    10.7.0.2  fd07::2   │
//!   │   │                         │                 │                         │   │
//!   │ weft :51820            eth0 ├─────────────────┤ eth0    wireguard-go :51821 │
//!   │    192.0.2.1  2001:db8::1   │                 │   192.0.2.2  2001:db8::2    │
//!   └─────────────────────────────┘                 └─────────────────────────────┘
//! ```
//!
//! weft runs inside this process (once as the binary), wireguard-go as a child that dies with the test. wg(8)
//! finds wireguard-go by a socket in a directory that all namespaces share, so every interface name is used
//! once only. With WEFT_TEST_PEER another program runs in its place (`wireguard_go.rs`).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in their helpers")]

mod conversation;
mod end;
mod topology;
mod weft_end;
mod wireguard_go;

mod differential;
mod exchange;
mod keepalive;
mod ordering;
mod preshared_key;
mod restart;
mod roaming;
mod several_peers;
mod strangers;
