//! Android: `VpnService` creates the device and hands its descriptor in.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use crate::attached::{PACKET_INFORMATION, describe, has_packet_information, name_of_queue};
use crate::config::OpenError;
use crate::plain::PlainQueue;

/// The queue of a device.
pub(super) type SystemQueue = PlainQueue;

pub(super) fn create(_: &str) -> Result<(SystemQueue, String), OpenError> {
    Err(OpenError::Unsupported { platform: std::env::consts::OS })
}

/// Adopts the descriptor of a device, and returns the name of the interface.
pub(super) fn adopt(descriptor: OwnedFd, name: String) -> Result<(SystemQueue, String), OpenError> {
    let (actual, reason) = match describe(descriptor.as_fd()) {
        Ok((actual, flags)) if flags & libc::IFF_TUN != 0 && flags & libc::IFF_VNET_HDR == 0 => {
            (actual, has_packet_information(descriptor.as_fd()).then(|| PACKET_INFORMATION.to_owned()))
        }
        Ok((actual, _)) => (actual, Some("is no TUN without virtio headers".to_owned())),
        Err(errno) => (name, Some(format!("not an attached TUN queue ({})", errno.desc()))),
    };
    match reason {
        Some(reason) => Err(OpenError::Descriptor { index: 0, name: actual, reason }),
        None => Ok((PlainQueue::new(descriptor), actual)),
    }
}

pub(super) fn name_of(descriptor: &OwnedFd) -> io::Result<String> {
    name_of_queue(descriptor)
}
