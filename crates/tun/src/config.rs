//! What a device is opened with, and why that can fail.

use std::io;

use crate::Descriptor;

/// The most queues a device may have: the kernel's MAX_TAP_QUEUES.
pub const MAX_QUEUES: usize = 256;

/// How to open a [`Device`](crate::Device). Addresses, MTU and link state are not set here: that is netlink's.
#[derive(Debug)]
pub struct TunConfig {
    /// Name of the interface: 1 to 15 bytes, no `/`, no white space.
    pub name: String,
    /// Queues of the device; 0 counts as 1.
    pub queues: usize,
    /// Whether each queue has a reader and a writer thread; without, the runtime itself reads and writes them all.
    pub threads: bool,
    /// Already attached queues of the device `name`, to adopt instead of creating a device: as many as there
    /// are queues. They must have been made with `IFF_TUN | IFF_NO_PI`, and `IFF_MULTI_QUEUE` if they are
    /// several. Without `IFF_VNET_HDR` there is no offload.
    pub descriptors: Vec<Descriptor>,
    /// Whether the kernel may hand over, and is handed, super-packets and unfinished checksums.
    pub offload: bool,
}

impl TunConfig {
    /// A new device called `name`, with one queue and no threads, with offload.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), queues: 1, threads: false, descriptors: Vec::new(), offload: true }
    }
}

/// Which super-packets a device takes part in, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TunOffload {
    /// TCP segmentation (TSO), and checksums.
    pub tcp: bool,
    /// UDP segmentation (USO): Linux 6.2 and later.
    pub udp: bool,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The name is empty, longer than 15 bytes, or has a character that Linux refuses.
    #[error("{name:?} is no valid interface name: 1 to 15 bytes without '/', ':', '%' and white space")]
    InvalidName {
        /// The name that was asked for.
        name: String,
    },
    /// There is an interface of that name, whoever owns it.
    #[error("interface {name} already exists; remove it (ip link del {name}) or choose another name")]
    Exists {
        /// The name that was asked for.
        name: String,
    },
    /// The process may not create network interfaces.
    #[error("not allowed to create interface {name}: needs CAP_NET_ADMIN; run as root")]
    PermissionDenied {
        /// The name that was asked for.
        name: String,
    },
    /// The process may not open the TUN driver.
    #[error(
        "not allowed to open /dev/net/tun, for interface {name}: run as root, or open it (chmod 0666 /dev/net/tun)"
    )]
    DriverForbidden {
        /// The name that was asked for.
        name: String,
    },
    /// The kernel's TUN driver is not there.
    #[error(
        "/dev/net/tun is missing: load the module (modprobe tun), or pass the device into the container \
         (--device /dev/net/tun)"
    )]
    NoTunDriver,
    /// More queues than the kernel allows for one device.
    #[error("{queues} queues are too many: a device has at most {MAX_QUEUES}")]
    TooManyQueues {
        /// The number that was asked for.
        queues: usize,
    },
    /// The number of handed-in descriptors is not the number of queues.
    #[error("{descriptors} descriptors were handed in for {queues} queues")]
    DescriptorCount {
        /// How many there are.
        descriptors: usize,
        /// How many there must be.
        queues: usize,
    },
    /// A handed-in descriptor cannot be used.
    #[error("handed-in descriptor {index} of {name}: {reason}")]
    Descriptor {
        /// Its place in [`TunConfig::descriptors`].
        index: usize,
        /// The name that was asked for.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The platform has no implementation.
    #[error("weft has no TUN implementation for {platform} yet")]
    Unsupported {
        /// Name of the platform, as in `std::env::consts::OS`.
        platform: &'static str,
    },
    /// Anything else that the system reports.
    #[error("cannot {action} for interface {name}: {source}")]
    Io {
        /// The step that failed.
        action: &'static str,
        /// The name that was asked for.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// The nearest `io::ErrorKind`.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::InvalidName { .. } | Self::TooManyQueues { .. } => io::ErrorKind::InvalidInput,
            Self::DescriptorCount { .. } | Self::Descriptor { .. } => io::ErrorKind::InvalidInput,
            Self::Exists { .. } => io::ErrorKind::AlreadyExists,
            Self::PermissionDenied { .. } | Self::DriverForbidden { .. } => io::ErrorKind::PermissionDenied,
            Self::NoTunDriver => io::ErrorKind::NotFound,
            Self::Unsupported { .. } => io::ErrorKind::Unsupported,
            Self::Io { source, .. } => source.kind(),
        }
    }
}
