//! What keeps a device and its descriptor: the library that created it, whose end may destroy the interface,
//! or the descriptor alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::config::OpenError;

/// A device, or a descriptor of one that was handed in.
pub enum Owner {
    /// A device that weft created. The interface of FreeBSD outlives its descriptor unless it is destroyed.
    Created(tun_rs::SyncDevice),
    /// A descriptor that was handed in.
    Adopted(OwnedFd),
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Created(device) => device.as_fd(),
            Self::Adopted(descriptor) => descriptor.as_fd(),
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Owner").field(&self.as_fd()).finish()
    }
}

/// Creates a device with this name, or with the first free one. Leaves routes, addresses and the link alone.
pub(super) fn create(name: Option<&str>) -> io::Result<tun_rs::SyncDevice> {
    let mut builder = tun_rs::DeviceBuilder::new().inherit_enable_state();
    if let Some(name) = name {
        builder = builder.name(name);
    }
    let builder = builder.with(|builder| {
        builder.associate_route(false).packet_information(true);
    });
    builder.build_sync()
}

/// Returns the error of a step to create the device `name`.
pub(super) fn open_error(action: &'static str, name: &str, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => OpenError::PermissionDenied { name },
        io::ErrorKind::AlreadyExists | io::ErrorKind::ResourceBusy => OpenError::Exists { name },
        _ => OpenError::Io { action, name, source },
    }
}
