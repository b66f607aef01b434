//! A TCP/IP endpoint inside the process, without I/O: no sockets and no threads, and the caller passes the
//! time.
//!
//! Packets from the tunnel go into [`Endpoint::handle_batch`]; [`Endpoint::transmit`] writes packets for the
//! tunnel where the caller has room. Sockets are numbers with a generation. Applications copy outside of the
//! endpoint: they take and put [`Chunk`]s.
//!
//! The caller loops: `handle_batch`, `handle_timeout` when [`Endpoint::poll_timeout`] says so,
//! `poll_event` until it is `None`, `transmit` until it returns false.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod chunk;
mod common;
mod config;
mod congestion;
mod endpoint;
mod event;
mod half_open;
mod icmp;
mod packet;
mod reassembly;
mod secret;
mod segment;
mod slots;
mod stats;
mod tcp;
mod time_wait;
mod timers;
mod udp;

pub use chunk::Chunk;
pub use config::{Config, Limits};
pub use congestion::CongestionControl;
pub use endpoint::{Endpoint, PacketSink};
pub use event::{BindError, ConnectError, Event, ListenerId, StreamError, StreamId, UdpError, UdpId};
pub use stats::{Stats, StreamState, StreamStats};
