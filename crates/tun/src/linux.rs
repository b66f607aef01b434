//! The TUN device of Linux: queues of one device, each packet behind a virtio header, or bare where the
//! device was made without.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::config::{OpenError, TunConfig};
use crate::device::queue::Read;
use crate::device::{self, Queue};
use crate::plain::PlainQueue;

mod adopt;
mod create;
mod dropped;
pub(crate) mod vnet;

pub use adopt::{check_queue, open_queues};
pub use create::{MAX_QUEUES, SUPER_PACKETS};

pub use crate::attached::name_of_queue;
use vnet::VnetQueue;

/// A TUN device. Dropping it shuts it down, as `shutdown` does.
pub type Device = device::Device<LinuxQueue>;

/// Creates the device of `config`, or adopts its descriptors. Does not change link state, MTU or addresses.
///
/// Needs CAP_NET_ADMIN unless every queue is handed in. Creation is exclusive: it fails if an interface of
/// that name exists, so a queue of another process is never shared. May be called outside of a runtime; a
/// device without threads registers with the runtime that polls it first.
pub fn open(config: TunConfig) -> Result<Device, OpenError> {
    let threads = config.threads;
    Device::start(create::open(config)?, threads)
}

/// Opens the device for several packet threads: one [`Device`] each, in order. `config.queues` is the number
/// of all queues, at least one for each; each `Device` reads a contiguous range of them and writes to all.
/// Each must be polled by another runtime, with time enabled. There are no threads of the device beside
/// several.
pub fn open_shards(config: TunConfig, shards: usize) -> Result<Vec<Device>, OpenError> {
    let (threads, queues) = (config.threads, config.queues.max(1));
    if shards > queues {
        return Err(OpenError::TooManyShards { shards, queues });
    }
    if shards > 1 && threads {
        return Err(OpenError::ThreadsOfShards { shards });
    }
    Device::start_several(create::open(config)?, threads, shards)
}

/// An attached queue of a device.
#[derive(Debug)]
pub enum LinuxQueue {
    /// With a virtio header before each packet.
    Vnet(VnetQueue),
    /// Without.
    Plain(PlainQueue),
}

impl LinuxQueue {
    fn new(descriptor: OwnedFd, has_header: bool) -> Self {
        if has_header {
            Self::Vnet(VnetQueue::new(descriptor))
        } else {
            Self::Plain(PlainQueue::new(descriptor))
        }
    }

    fn has_header(&self) -> bool {
        matches!(self, Self::Vnet(_))
    }
}

impl AsFd for LinuxQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Vnet(queue) => queue.as_fd(),
            Self::Plain(queue) => queue.as_fd(),
        }
    }
}

impl AsRawFd for LinuxQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Queue for LinuxQueue {
    fn read(&self, slab: &mut crate::Slab) -> Read {
        match self {
            Self::Vnet(queue) => queue.read(slab),
            Self::Plain(queue) => queue.read(slab),
        }
    }

    fn write(&self, pieces: &[std::io::IoSlice<'_>]) -> Result<(), Errno> {
        match self {
            Self::Vnet(queue) => queue.write(pieces),
            Self::Plain(queue) => queue.write(pieces),
        }
    }

    fn ring_packets(device: &str) -> u64 {
        create::tx_queue_len(device)
    }

    fn dropped(device: &str) -> u64 {
        dropped::tx_dropped(device)
    }
}

impl Device {
    /// Returns a device on descriptors that need not be those of a TUN, such as datagram sockets. Each
    /// message carries a virtio header of 10 bytes and a packet. Unlike a TUN, a socket may be full. Each
    /// descriptor is a queue.
    #[doc(hidden)]
    pub fn from_descriptors_for_test(
        name: &str,
        descriptors: Vec<OwnedFd>,
        threads: bool,
        offload: crate::TunOffload,
    ) -> std::io::Result<Self> {
        Self::new(opened_for_test(name, descriptors, offload)?, threads)
    }

    /// As [`Self::from_descriptors_for_test`], for several packet threads.
    #[doc(hidden)]
    pub fn shards_from_descriptors_for_test(
        name: &str,
        descriptors: Vec<OwnedFd>,
        threads: bool,
        offload: crate::TunOffload,
        shards: usize,
    ) -> std::io::Result<Vec<Self>> {
        Self::several(opened_for_test(name, descriptors, offload)?, threads, shards)
    }
}

fn opened_for_test(
    name: &str,
    descriptors: Vec<OwnedFd>,
    offload: crate::TunOffload,
) -> std::io::Result<device::Opened<LinuxQueue>> {
    for descriptor in &descriptors {
        device::descriptor::set_nonblocking(descriptor.as_fd())?;
    }
    let queues = descriptors.into_iter().map(|descriptor| LinuxQueue::new(descriptor, true)).collect();
    Ok(device::Opened { queues, name: name.to_owned(), offload, joins_segments: false })
}
