//! What one thread sends in a measurement.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use weft_lab::client::HEADERS;

use crate::pacing::{Bounds, Ledger, Windows};

/// Time without an arrival after which packets in flight count as lost.
pub(super) const GIVEN_UP: Duration = Duration::from_millis(300);
/// Bytes of an inner packet: the size of a full TCP segment.
pub(super) const PACKET: usize = 1400;

/// How peers send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Packets of a peer, sent or received, that follow each other.
    pub(super) burst: u64,
    /// Upper bound of the packets in flight, all peers together.
    pub(super) window: u64,
}

/// One sender's share of a measurement: which packets, to which port, until when.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub(super) shape: Shape,
    /// Destination port of the clients' packets.
    pub(super) port: u16,
    pub(super) is_flood: bool,
    pub(super) ledger: &'a Ledger,
    pub(super) stop: &'a AtomicBool,
}

impl Task<'_> {
    /// The UDP payload of a packet in bytes.
    pub(super) const PAYLOAD: usize = PACKET - HEADERS;

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Returns the windows for this number of peers.
    pub(super) fn windows(&self, peers: usize) -> Windows {
        let Shape { burst, window } = self.shape;
        let each = (window / peers.max(1) as u64).max(2 * burst);
        Windows::new(peers, (!self.is_flood).then_some(Bounds { all: window, each, lost: GIVEN_UP }))
    }
}
