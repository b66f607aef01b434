//! Outbound packets of one peer that wait for a session, in order.

use std::collections::VecDeque;

use crate::initiations::Cause;
use crate::offload::Offload;
use crate::packet::{PacketMut, TAILROOM};

/// Maximum number of staged packets of one peer, as in WireGuard for Linux.
const MAX_PACKETS: usize = 128;
/// Maximum bytes of staged packets of one peer: four super-packets.
const MAX_BYTES: usize = 256 * 1024;

/// A staged packet.
#[derive(Debug)]
pub(crate) struct Staged {
    buffer: Box<[u8]>,
    len: usize,
    offload: Offload,
    /// What the packet comes from, for sharing the staging budget.
    pub(crate) cause: Cause,
}

impl Staged {
    fn copy_of(packet: &PacketMut<'_>, cause: Cause) -> Self {
        let bytes = packet.bytes();
        let mut buffer = vec![0; bytes.len() + TAILROOM].into_boxed_slice();
        buffer[..bytes.len()].copy_from_slice(bytes);
        Self { buffer, len: bytes.len(), offload: packet.offload(), cause }
    }

    /// Returns the packet as it was read from the TUN.
    pub(crate) fn packet(&mut self) -> Option<PacketMut<'_>> {
        PacketMut::new(&mut self.buffer, self.len, self.offload)
    }
}

/// The staged packets of one peer, bounded in number and bytes.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    packets: VecDeque<Staged>,
    bytes: usize,
}

impl Staging {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the bytes of all staged packets.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the cause of the oldest packet.
    pub(crate) fn oldest_cause(&self) -> Option<Cause> {
        self.packets.front().map(|staged| staged.cause)
    }

    /// Reports whether a packet of `len` bytes does not fit beside the staged packets.
    pub(crate) fn is_full_for(&self, len: usize) -> bool {
        self.packets.len() >= MAX_PACKETS || self.bytes + len > MAX_BYTES
    }

    /// Adds a copy of `packet` behind the others.
    pub(crate) fn push(&mut self, packet: &PacketMut<'_>, cause: Cause) {
        let staged = Staged::copy_of(packet, cause);
        self.bytes += staged.len;
        self.packets.push_back(staged);
    }
    /// Removes and returns the oldest packet of one cause.
    pub(crate) fn pop_of(&mut self, cause: Cause) -> Option<Staged> {
        let place = self.packets.iter().position(|staged| staged.cause == cause)?;
        let staged = self.packets.remove(place)?;
        self.bytes -= staged.len;
        Some(staged)
    }

    /// Removes and returns the oldest packet.
    pub(crate) fn pop(&mut self) -> Option<Staged> {
        let staged = self.packets.pop_front()?;
        self.bytes -= staged.len;
        Some(staged)
    }
}
