//! The TUN device of Linux: queues of one device, each packet behind a virtio header, or bare where the
//! device was made without. Where there may be none, a packet socket takes its place.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use crate::config::{DeviceNamespace, OpenError, TunConfig};
use crate::device::queue::Read;
use crate::device::{self, Queue};
use crate::plain::PlainQueue;

mod adopt;
mod create;
mod dropped;
mod packet_socket;
pub(crate) mod vnet;

pub use adopt::{check_queue, open_queues};
pub use create::{MAX_QUEUES, SUPER_PACKETS};
pub use packet_socket::{FAR, NEAR, bind_far_end, offload_of};

pub use crate::attached::name_of_queue;
use packet_socket::PacketSocket;
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
pub struct LinuxQueue {
    kind: Kind,
    /// Where the device is, if not in the namespace of this process.
    namespace: Option<Arc<DeviceNamespace>>,
}

#[derive(Debug)]
enum Kind {
    /// With a virtio header before each packet.
    Vnet(VnetQueue),
    /// Without.
    Plain(PlainQueue),
    /// With a virtio header and an Ethernet header.
    Packet(PacketSocket),
}

impl LinuxQueue {
    fn new(descriptor: OwnedFd, has_header: bool, namespace: Option<Arc<DeviceNamespace>>) -> Self {
        let kind = if has_header {
            Kind::Vnet(VnetQueue::new(descriptor))
        } else {
            Kind::Plain(PlainQueue::new(descriptor))
        };
        Self { kind, namespace }
    }

    fn packet_socket(socket: OwnedFd, namespace: Option<Arc<DeviceNamespace>>) -> Self {
        Self { kind: Kind::Packet(PacketSocket::new(socket)), namespace }
    }

    fn has_header(&self) -> bool {
        !matches!(self.kind, Kind::Plain(_))
    }
}

impl AsFd for LinuxQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Vnet(queue) => queue.as_fd(),
            Kind::Plain(queue) => queue.as_fd(),
            Kind::Packet(queue) => queue.as_fd(),
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
        match &self.kind {
            Kind::Vnet(queue) => queue.read(slab),
            Kind::Plain(queue) => queue.read(slab),
            Kind::Packet(queue) => queue.read(slab),
        }
    }

    fn write(&self, pieces: &[std::io::IoSlice<'_>]) -> Result<(), Errno> {
        match &self.kind {
            Kind::Vnet(queue) => queue.write(pieces),
            Kind::Plain(queue) => queue.write(pieces),
            Kind::Packet(queue) => queue.write(pieces),
        }
    }

    fn ring_packets(&self, device: &str) -> u64 {
        match &self.namespace {
            None => create::tx_queue_len(device),
            Some(there) => create::tx_queue_len_by(there.socket.as_fd(), device),
        }
    }

    fn dropped(&self, device: &str) -> u64 {
        let there = self.namespace.as_ref().map(|there| there.proc_net.as_path());
        dropped::tx_dropped(device, there.unwrap_or(Path::new("/proc/thread-self/net")))
    }

    fn poll_drops(&self) -> u64 {
        match &self.kind {
            Kind::Packet(queue) => queue.poll_drops(),
            // The kernel counts them for the device.
            Kind::Vnet(_) | Kind::Plain(_) => 0,
        }
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
) -> std::io::Result<device::OpenDevice<LinuxQueue>> {
    for descriptor in &descriptors {
        device::descriptor::set_nonblocking(descriptor.as_fd())?;
    }
    let queues = descriptors.into_iter().map(|descriptor| LinuxQueue::new(descriptor, true, None)).collect();
    Ok(device::OpenDevice { queues, name: name.to_owned(), offload })
}
