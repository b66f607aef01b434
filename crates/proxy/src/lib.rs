//! Proxies into a network that needs no interface on the host: SOCKS5, HTTP, and forwards in both directions.
//!
//! [`weft_network::Network`] makes every connection and every socket of the tunnel. [`Reach`] chooses between
//! the tunnel and the host's own network for each destination. [`Server`] makes the listening sockets of the
//! host, and passes each client to `socks5.rs`, `http.rs` or a forward. `relay.rs` carries the bytes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod address;
mod budget;
mod descriptors;
mod destination;
mod gone;
mod guesses;
mod http;
mod machine;
mod mapping;
mod moves;
mod owner;
#[cfg(test)]
mod pipe;
mod proxy;
mod reach;
mod relay;
mod replies;
mod server;
mod socks5;
#[cfg(unix)]
mod stdio;
mod udp_forward;
#[cfg(unix)]
mod unix;
#[cfg(not(unix))]
mod unsupported;

#[cfg(unix)]
use unix as system;
#[cfg(not(unix))]
use unsupported as system;

pub use access::{Users, UsersError};
pub use address::{
    Forward, InvalidForward, InvalidLocalAddress, LocalAddress, Reverse, Transport, TunnelAddress,
};
pub use descriptors::DESCRIPTORS;
pub use destination::{Destination, Host, InvalidDestination};
pub use machine::Near;
pub use reach::{Elsewhere, Reach, ReachError};
pub use server::{Options, Server, StartError};
#[cfg(unix)]
pub use stdio::{Stdio, StdioError, connect_stdio};
