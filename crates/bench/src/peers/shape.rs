//! What clients and gateway send each other: ports, sizes and bursts.

use super::client::MTU;
use super::packet::{HEADERS, STAMP};

/// Ports of the gateway: two sinks, of which the second one is for the flooding peer, and an echo.
pub(super) const SINK: u16 = 4000;
pub(super) const HEAVY_SINK: u16 = 4003;
pub(super) const ECHO: u16 = 4001;
/// Port of the clients.
pub(super) const CLIENT: u16 = 4002;

/// The packets that are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of an inner packet.
    pub(super) bytes: usize,
    /// Packets of a peer, sent or received, that follow each other.
    pub(super) burst: u64,
    /// Upper bound of the packets in flight, all peers together.
    pub(super) window: u64,
    /// Destination port of the clients' packets.
    pub(super) port: u16,
}

impl Shape {
    /// Creates a shape with packets of 1,400 bytes, the size of a full TCP segment.
    pub(super) fn full(burst: u64, window: u64) -> Self {
        Self { bytes: 1400, burst, window, port: SINK }
    }

    /// Returns the UDP payload of a packet in bytes.
    pub(super) fn payload(self) -> usize {
        self.bytes.clamp(HEADERS + STAMP, MTU.into()) - HEADERS
    }
}
