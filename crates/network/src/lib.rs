//! A network with TCP, UDP and names: that of the kernel, or that inside a tunnel.
//!
//! [`Network`] makes every connection and every socket. [`Kernel`] implements it over sockets of the kernel,
//! and [`Resolver`] looks names up through any network.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod connect_first;
pub mod datagram;
mod kernel;
mod network;
mod resolver;
mod stream;

pub use connect_first::{CONNECT_TIMEOUT, connect_first};
pub use kernel::{Kernel, MakeSocket};
pub use network::{Connection, Datagrams, Later, Listener, LookUpError, Network, Stats};
pub use resolver::Resolver;
pub use stream::Stream;
