//! The TUN device of Windows: an adapter of Wintun, over tun-rs. Packets come from one ring and go to
//! another.
//!
//! A ring has no descriptor that a runtime could poll, so a device has a reader and a writer thread always. A
//! full ring announces no room: the writer gives the driver a moment, then pauses, and its packet stays.

use std::io::{self, IoSlice};
use std::thread;

use tun_rs::{InterruptEvent, SyncDevice};
use weft_tunnel::MAX_PACKET;

use crate::batch::Slab;
use crate::config::{OpenError, TunConfig};
use crate::device::descriptor::{Descriptor, Pollable};
use crate::device::queue::{HEADROOM, Queue, Read, commit_packet, read_room};
use crate::device::{self, OpenDevice};

mod adapter;
mod library;

/// The maximum number of queues of a device.
pub const MAX_QUEUES: usize = 1;
/// Whether a device takes super-packets.
pub const SUPER_PACKETS: bool = false;

/// How often the driver gets the processor before a full ring counts as full.
const YIELDS: usize = 3;

/// A TUN device. Dropping it shuts it down, as `shutdown` does.
pub type Device = device::Device<WintunQueue>;

/// Creates the device of `config`, with threads. Does not change link state, MTU or addresses. Needs an
/// administrator, and wintun.dll beside the program.
pub fn open(config: TunConfig) -> Result<Device, OpenError> {
    let TunConfig { name, queues, descriptors, ring_bytes, .. } = config;
    if name.is_empty() {
        return Err(OpenError::InvalidName { name });
    }
    if queues > MAX_QUEUES {
        return Err(OpenError::TooManyQueues { queues });
    }
    if !descriptors.is_empty() {
        return Err(OpenError::DescriptorCount { descriptors: descriptors.len(), queues: 0 });
    }
    let queue = WintunQueue { device: adapter::create(&name, &library::path(&name)?, ring_bytes)? };
    Device::start(OpenDevice::without_offload(name, queue), true)
}

/// Opens the device of `config` for one packet thread. This platform serves no more.
pub fn open_shards(config: TunConfig, shards: usize) -> Result<Vec<Device>, OpenError> {
    if shards > MAX_QUEUES {
        return Err(OpenError::TooManyShards { shards, queues: MAX_QUEUES });
    }
    open(config).map(|device| vec![device])
}

/// Returns the name of the device that a queue is attached to.
pub fn name_of_queue(descriptor: &Descriptor) -> io::Result<String> {
    match *descriptor {}
}

/// Checks that a descriptor is an attached queue of the device `name`.
pub fn check_queue(descriptor: &Descriptor, _name: &str) -> Result<(), String> {
    match *descriptor {}
}

/// Fails with [`OpenError::Unsupported`]: a device cannot be created apart from [`open`].
#[allow(clippy::needless_pass_by_value)]
pub fn open_queues(
    _name: &str,
    _existing: Vec<Descriptor>,
    _count: usize,
) -> Result<Vec<Descriptor>, OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// The rings of an adapter.
pub struct WintunQueue {
    device: SyncDevice,
}

impl std::fmt::Debug for WintunQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WintunQueue").finish_non_exhaustive()
    }
}

impl Pollable for WintunQueue {
    fn wait_readable(&self, interrupt: &InterruptEvent) -> io::Result<()> {
        self.device.wait_readable_intr(interrupt)
    }
}

impl Queue for WintunQueue {
    fn read(&self, slab: &mut Slab) -> Read {
        match self.device.try_recv(read_room(slab, HEADROOM)) {
            Ok(len) => commit_packet(slab, len),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Read::Empty,
                io::ErrorKind::InvalidInput => Read::Malformed,
                // The adapter was removed.
                io::ErrorKind::UnexpectedEof => Read::Gone,
                _ => {
                    tracing::error!(%error, "reading from the TUN failed for good");
                    Read::Gone
                }
            },
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<(), io::ErrorKind> {
        let joined;
        let packet = match pieces {
            [_, packet] => packet,
            // A ring takes a packet in one piece.
            [_, pieces @ ..] if !pieces.is_empty() => {
                joined = pieces.iter().fold(Vec::with_capacity(MAX_PACKET), |mut all, piece| {
                    all.extend_from_slice(piece);
                    all
                });
                &joined[..]
            }
            _ => return Err(io::ErrorKind::InvalidInput),
        };
        for _ in 0..YIELDS {
            match self.device.try_send(packet) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                other => return other.map(drop).map_err(|error| error.kind()),
            }
        }
        Err(io::ErrorKind::WouldBlock)
    }
}
