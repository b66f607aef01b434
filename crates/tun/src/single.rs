//! Platforms whose TUN is one descriptor with one packet a call: everything unix but Linux.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use crate::Descriptor;
use crate::config::{OpenError, TunConfig};
use crate::device::descriptor::set_nonblocking;
use crate::device::{self, OpenDevice};

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
mod owner;
#[cfg_attr(target_os = "macos", path = "single/macos.rs")]
#[cfg_attr(target_os = "freebsd", path = "single/freebsd.rs")]
#[cfg_attr(target_os = "android", path = "single/android.rs")]
#[cfg_attr(target_os = "ios", path = "single/ios.rs")]
#[cfg_attr(
    not(any(target_os = "macos", target_os = "freebsd", target_os = "android", target_os = "ios")),
    path = "single/handed_in.rs"
)]
mod system;
#[cfg(any(target_os = "macos", target_os = "ios"))]
mod utun;

/// The maximum number of queues of a device.
pub const MAX_QUEUES: usize = 1;
/// Whether a device takes super-packets.
pub const SUPER_PACKETS: bool = false;

/// A TUN device. Dropping it shuts it down, as `shutdown` does.
pub type Device = device::Device<system::SystemQueue>;

/// Creates the device of `config`, or adopts its descriptor. Does not change link state, MTU or addresses.
///
/// The system may give the device another name than the requested one: `Device::name` returns it. May be
/// called outside of a runtime; a device without threads registers with the runtime that polls it first.
pub fn open(config: TunConfig) -> Result<Device, OpenError> {
    let TunConfig { name, queues, threads, mut descriptors, .. } = config;
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(OpenError::InvalidName { name });
    }
    if queues > MAX_QUEUES {
        return Err(OpenError::TooManyQueues { queues });
    }
    if descriptors.len() > MAX_QUEUES {
        return Err(OpenError::DescriptorCount { descriptors: descriptors.len(), queues: MAX_QUEUES });
    }
    let (queue, name) = match descriptors.pop() {
        Some(descriptor) => system::adopt(descriptor, name)?,
        None => system::create(&name)?,
    };
    if let Err(errno) = set_nonblocking(queue.as_fd()) {
        let action = "make the descriptor non-blocking";
        return Err(OpenError::Io { action, name, source: errno.into() });
    }
    Device::start(OpenDevice::without_offload(name, queue), threads)
}

/// Opens the device of `config` for one packet thread. This platform serves no more.
pub fn open_shards(config: TunConfig, shards: usize) -> Result<Vec<Device>, OpenError> {
    if shards > MAX_QUEUES {
        return Err(OpenError::TooManyShards { shards, queues: MAX_QUEUES });
    }
    open(config).map(|device| vec![device])
}

/// Returns the name of the device that a queue is attached to.
///
/// # Errors
/// The descriptor is not one of a device, or the system does not tell.
pub fn name_of_queue(descriptor: &Descriptor) -> io::Result<String> {
    system::name_of(descriptor)
}

/// Checks that a descriptor is the queue of the device `name`.
///
/// # Errors
/// A description of what the descriptor is instead.
pub fn check_queue(descriptor: &Descriptor, name: &str) -> Result<(), String> {
    match system::name_of(descriptor) {
        Ok(actual) if actual == name => Ok(()),
        Ok(actual) => Err(format!("it belongs to interface {actual}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the queue in `existing`. A device cannot be created apart from [`open`]: it ends with its
/// descriptor.
///
/// # Errors
/// [`OpenError::Unsupported`] without an existing queue.
pub fn open_queues(
    _name: &str,
    mut existing: Vec<OwnedFd>,
    _count: usize,
) -> Result<Vec<OwnedFd>, OpenError> {
    existing.truncate(MAX_QUEUES);
    if existing.is_empty() {
        return Err(OpenError::Unsupported { platform: std::env::consts::OS });
    }
    Ok(existing)
}
