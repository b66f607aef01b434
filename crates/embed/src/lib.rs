//! A TCP/IP stack in the place of a TUN device, for tunnels that end in the process that uses them.
//!
//! [`Tunnel`] is a whole tunnel for a program: no device, no right, and nothing of the system changes but UDP
//! sockets. There may be several, and there is no global state. `examples/fetch.rs` is a program that uses
//! one:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::io::AsyncReadExt as _;
//! use weft_embed::{Settings, Tunnel};
//!
//! let tunnel = Tunnel::open(Settings::read("office.conf".as_ref())?).await?;
//! let mut greeting = [0; 64];
//! let count = tunnel.connect("mail.internal", 25).await?.read(&mut greeting).await?;
//! # let _ = count;
//! # Ok(())
//! # }
//! ```
//!
//! Beneath it, [`open`] returns the two sides of the stack: [`EndpointTun`] is the device of a packet thread,
//! and [`Stack`] is the network that applications of this process use. Between them is one
//! [`weft_endpoint::Endpoint`] under one lock (`shared.rs`). The packet thread holds it for a batch, an
//! application for the hand-over of a chunk.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod routes;
mod shared;
mod stack;
mod stream;
mod tun;
mod tunnel;
mod udp;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use weft_endpoint::{Endpoint, Limits};

use shared::Shared;

pub use stack::Stack;
pub use stream::{TcpListener, TcpStream};
pub use tun::EndpointTun;
pub use tunnel::{Driver, OpenError, Settings, Tunnel, address_of};
pub use udp::UdpSocket;
pub use weft_config::device::PeerState;
pub use weft_endpoint::{Stats, StreamStats};
pub use weft_network::{Connection, Datagrams, Listener, LookUpError, Network, datagram};

/// What a stack is opened with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its addresses in the tunnel. The first one of a family is the source of its connections.
    pub addresses: Vec<IpAddr>,
    /// Bytes of the longest IP packet that the tunnel takes.
    pub mtu: u16,
    /// Bytes that connections may reserve, all together.
    pub memory: u64,
}

/// Opens a stack. Nothing moves before a packet thread polls the device.
pub fn open(config: Config) -> (EndpointTun, Stack) {
    let Config { addresses, mtu, memory } = config;
    let limits = Limits { keepalive: Some(stack::KEEPALIVE), ..Limits::default() };
    let config = weft_endpoint::Config { addresses, mtu, memory, limits, secret: rand::random() };
    let shared = Arc::new(Shared::new(Endpoint::new(config, Instant::now())));
    (EndpointTun::new(Arc::clone(&shared)), Stack::new(shared))
}
