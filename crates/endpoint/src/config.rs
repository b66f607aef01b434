//! What an endpoint is made with.

use std::net::IpAddr;
use std::time::Duration;

use crate::CongestionControl;

/// What [`crate::Endpoint::new`] is given.
#[derive(Clone, Debug)]
pub struct Config {
    /// The addresses of the endpoint. The first one of a family is the source of its connections.
    pub addresses: Vec<IpAddr>,
    /// Bytes of the longest IP packet that the tunnel takes. Values below 576 count as 576.
    pub mtu: u16,
    /// Bytes of the buffers of all connections together, for what they receive and have queued to send.
    pub memory: u64,
    /// Bounds of single things.
    pub limits: Limits,
    /// A random secret, new for each endpoint: initial sequence numbers (RFC 6528), ports (RFC 6056) and
    /// timestamps depend on it.
    pub secret: [u8; 32],
}

/// Bounds of single things, and how connections behave.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of the receive window of a connection, at most: no more than a quarter of the memory either.
    pub receive_window: u32,
    /// The same of what it has queued to send.
    pub send_buffer: u32,
    /// Connections, at most.
    pub streams: u32,
    /// Connections that applications have released and that are not over: beyond it the oldest is reset.
    pub orphans: u32,
    /// Connections that are being accepted and of which the handshake is not complete, in all.
    pub half_open: u32,
    /// The same from one source address.
    pub half_open_per_source: u32,
    /// Records of connections in TIME-WAIT.
    pub time_wait: u32,
    /// Bytes of fragments that wait for the rest of their packet.
    pub reassembly: u32,
    /// Bytes that a UDP socket keeps each way.
    pub udp_buffer: u32,
    /// Time without a segment after which a connection probes its peer (RFC 9293, section 3.8.4).
    pub keepalive: Option<Duration>,
    /// How connections avoid congestion.
    pub congestion_control: CongestionControl,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            receive_window: 32 << 20,
            send_buffer: 32 << 20,
            streams: 65_536,
            orphans: 4096,
            half_open: 4096,
            half_open_per_source: 64,
            time_wait: 16_384,
            reassembly: 1 << 20,
            udp_buffer: 256 << 10,
            keepalive: None,
            congestion_control: CongestionControl::default(),
        }
    }
}
