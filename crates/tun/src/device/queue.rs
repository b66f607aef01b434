//! One packet queue of a TUN, as the portable device sees it: the seam between this folder and the platforms.
//! A platform implements [`Queue`] with the two system calls that every packet goes through.

use std::io::IoSlice;

use weft_tunnel::{MAX_PACKET, TAILROOM};

use super::descriptor::{self, Errno, Pollable};
use super::vnet_hdr::{self, VNET_HDR};
pub(crate) use super::write_error::WriteError;
use crate::batch::Slab;

/// Bytes in front of every packet of a slab, where a read puts the header of the platform: room for the
/// longest one.
pub(crate) const HEADROOM: usize = VNET_HDR;

/// Bytes that one read may need: the header of the platform, the longest super-packet (IPv6 does not count
/// its header in the length), and the tail that encryption may write into.
pub(crate) const READ_ROOM: usize = HEADROOM + weft_tunnel::ip::IPV6_HEADER + MAX_PACKET + TAILROOM;

/// What a thread waits for at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// A packet can be read.
    Readable,
    /// A packet can be written.
    Writable,
}

/// Why the wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The queue is as was waited for.
    Ready,
    /// The device does not exist any more.
    Gone,
    /// Another thread asked for it.
    Asked,
}

/// A packet queue of a TUN device. Calls on it do not wait.
///
/// The descriptor is the same in every call and stays open as long as the queue lives: the runtime and the
/// threads wait for its readiness.
pub trait Queue: Pollable + std::fmt::Debug + Send + Sync + 'static {
    /// Reads one packet straight into `slab`, which must have [`READ_ROOM`] bytes free.
    fn read(&self, slab: &mut Slab) -> Read;

    /// Writes one packet or super-packet. The first piece is a virtio header, which is left out or replaced
    /// by a queue that has none. Such a queue gets a single packet in one more piece, and one that was joined
    /// in several, of which the first has its headers.
    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// Returns what an error of a write means.
    fn meaning_of(error: Errno) -> WriteError {
        descriptor::meaning_of(error)
    }

    /// Returns the number of packets that a ring of the device may hold. Asked of devices with several queues
    /// only.
    fn ring_packets(&self, _device: &str) -> u64 {
        0
    }

    /// Returns the number of packets for the device that the system dropped because a ring was full. Asked of
    /// devices with several queues only.
    fn dropped(&self, _device: &str) -> u64 {
        0
    }

    /// Returns the number of packets that the system dropped since the last call because the queue was full,
    /// where the system's counters of the device do not have them. Asked after many packets were read.
    fn poll_drops(&self) -> u64 {
        0
    }
}

/// The result of one read.
#[derive(Debug)]
pub enum Read {
    /// A packet of `bytes` bytes, which is `segments` packets on the wire, was added to the slab.
    Packet {
        /// Bytes of the IP packet.
        bytes: u64,
        /// Packets on the wire.
        segments: u64,
    },
    /// The packet is malformed; nothing was added to the slab.
    Malformed,
    /// No packet waits.
    Empty,
    /// The device does not exist any more.
    Gone,
}

/// Returns the room for one read into the spare bytes of a slab: behind `before` bytes, and before the tail.
pub(crate) fn read_room(slab: &mut Slab, before: usize) -> &mut [u8] {
    let spare = slab.spare_mut();
    let end = spare.len().min(READ_ROOM) - TAILROOM;
    &mut spare[before..end]
}

/// Adds the packet of `bytes` bytes that was read behind the [`HEADROOM`], and on which no offload work is
/// left.
pub(crate) fn commit_packet(slab: &mut Slab, bytes: usize) -> Read {
    commit_packet_behind(slab, &vnet_hdr::NOTHING_TO_DO, bytes)
}

/// Adds the packet of `bytes` bytes that was read behind the [`HEADROOM`], with the work that its virtio
/// header says.
pub(crate) fn commit_packet_behind(slab: &mut Slab, header: &[u8; VNET_HDR], bytes: usize) -> Read {
    let packet = &slab.spare_mut()[HEADROOM..HEADROOM + bytes];
    match vnet_hdr::decode(header, packet) {
        Ok((offload, segments)) if slab.commit(HEADROOM, bytes, offload) => {
            Read::Packet { bytes: bytes as u64, segments }
        }
        _ => Read::Malformed,
    }
}
