//! Outbound packets of one peer that wait for a session, in order.

use std::collections::VecDeque;

use crate::initiations::Cause;
use crate::offload::Offload;
use crate::packet::{PacketMut, TAILROOM};

/// Packets that may wait for one peer: as many as WireGuard for Linux keeps.
const MAX_PACKETS: usize = 128;
/// Bytes that may wait for one peer: four super-packets.
const MAX_BYTES: usize = 256 * 1024;

/// One packet that waits.
#[derive(Debug)]
pub(crate) struct Staged {
    buffer: Box<[u8]>,
    len: usize,
    offload: Offload,
    /// What made it.
    pub(crate) cause: Cause,
}

impl Staged {
    fn copy_of(packet: &PacketMut<'_>, cause: Cause) -> Self {
        let bytes = packet.bytes();
        let mut buffer = vec![0; bytes.len() + TAILROOM].into_boxed_slice();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Self { buffer, len: bytes.len(), offload: packet.offload(), cause }
    }

    /// The packet as it was read.
    pub(crate) fn packet(&mut self) -> Option<PacketMut<'_>> {
        PacketMut::new(&mut self.buffer, self.len, self.offload)
    }
}

/// The waiting packets of one peer, bounded in number and bytes.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    packets: VecDeque<Staged>,
    bytes: usize,
}

impl Staging {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a packet of `len` bytes would not fit beside what waits.
    pub(crate) fn is_full_for(&self, len: usize) -> bool {
        self.packets.len() >= MAX_PACKETS || self.bytes + len > MAX_BYTES
    }

    /// Adds a copy of `packet` behind the others.
    pub(crate) fn push(&mut self, packet: &PacketMut<'_>, cause: Cause) {
        let staged = Staged::copy_of(packet, cause);
        self.bytes += staged.len;
        self.packets.push_back(staged);
    }

    /// Takes the oldest packet of one cause.
    pub(crate) fn pop_of(&mut self, cause: Cause) -> Option<Staged> {
        let place = self.packets.iter().position(|staged| staged.cause == cause)?;
        let staged = self.packets.remove(place)?;
        self.bytes -= staged.len;
        Some(staged)
    }

    /// Takes the oldest packet.
    pub(crate) fn pop(&mut self) -> Option<Staged> {
        let staged = self.packets.pop_front()?;
        self.bytes -= staged.len;
        Some(staged)
    }
}
