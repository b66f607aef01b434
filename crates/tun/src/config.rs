//! The configuration to open a device with, and the errors of opening it.

use std::env::consts::OS;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::{Descriptor, MAX_QUEUES};

/// How to open a [`Device`](crate::Device). Addresses, MTU and link state are not set here, but over netlink.
#[derive(Debug)]
pub struct TunConfig {
    /// Name of the interface: 1 to 15 bytes, without `/`, `:`, `%`, white space and control characters;
    /// neither `.` nor `..`.
    pub name: String,
    /// Number of queues of the device; 0 counts as 1.
    pub queues: usize,
    /// Whether each queue has a reader and a writer thread. Without threads, polling the device reads and
    /// writes all queues.
    pub threads: bool,
    /// Attached queues of the device `name`, to adopt instead of creating a device: either none, or one for
    /// each queue. They must have been attached with `IFF_TUN | IFF_NO_PI`, and with `IFF_MULTI_QUEUE` if
    /// there are several. Without `IFF_VNET_HDR` there is no offload. A packet socket on the far end of a
    /// veth pair (`bind_far_end`) is a queue too (Linux).
    pub descriptors: Vec<Descriptor>,
    /// Whether super-packets and partial checksums may be read from the kernel and written to it.
    pub offload: bool,
    /// Bytes of each ring of an adapter of Windows: a power of two from 128 KiB to 64 MiB.
    pub ring_bytes: u32,
    /// The network namespace of the adopted queues, if it is not that of this process (Linux).
    pub namespace: Option<Arc<DeviceNamespace>>,
}

/// Where the kernel answers questions about a device in another network namespace.
#[derive(Debug)]
pub struct DeviceNamespace {
    /// A socket of that namespace, of any kind.
    pub socket: Descriptor,
    /// The directory that proc_pid_net(5) describes, of a process in that namespace.
    pub proc_net: PathBuf,
}

/// The default of [`TunConfig::ring_bytes`]: what 10 Gbit/s bring in 13 ms.
pub const RING_BYTES: u32 = 16 << 20;

impl TunConfig {
    /// Returns the configuration of a new device called `name`, with one queue, without threads, with
    /// offload.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            queues: 1,
            threads: false,
            descriptors: Vec::new(),
            offload: true,
            ring_bytes: RING_BYTES,
            namespace: None,
        }
    }
}

/// The kinds of super-packets that a device reads and writes.
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
        /// The requested name.
        name: String,
    },
    /// An interface of that name exists already; on Linux a TUN device, of any owner.
    #[error("interface {name} already exists; {} or choose another name", removal(OS, name))]
    Exists {
        /// The requested name.
        name: String,
    },
    /// The name is that of an interface of another kind.
    #[error("interface {name} already exists, and is no TUN device; choose another name")]
    NotTun {
        /// The requested name.
        name: String,
    },
    /// An interface has the name beside its own.
    #[error(
        "interface {name} already exists: it is another name of {device}; take that away (ip link property del dev \
         {device} altname {name}) or choose another name"
    )]
    AltName {
        /// The requested name.
        name: String,
        /// The interface's own name.
        device: String,
    },
    /// The process may not create network interfaces.
    #[error("not allowed to create interface {name}: {}run as root", missing_right(OS))]
    PermissionDenied {
        /// The requested name.
        name: String,
    },
    /// The process may not open the TUN driver.
    #[error(
        "not allowed to open /dev/net/tun, for interface {name}: run as root, or open it (chmod 0666 /dev/net/tun; in a \
         unit of systemd DeviceAllow=/dev/net/tun)"
    )]
    DriverForbidden {
        /// The requested name.
        name: String,
    },
    /// The kernel's TUN driver is missing.
    #[error(
        "/dev/net/tun is missing: load the module (modprobe tun), or pass the device into the container \
         (--device /dev/net/tun)"
    )]
    NoTunDriver,
    /// Something else has the place of the TUN driver.
    #[error(
        "/dev/net/tun is not the TUN driver, but a file or another device: remove it, and make it \
         (mknod /dev/net/tun c 10 200)"
    )]
    NotTheDriver,
    /// The process may not create network adapters of Windows.
    #[error("not allowed to create interface {name}: run weft as an administrator")]
    NotAdministrator {
        /// The requested name.
        name: String,
    },
    /// An adapter of that name exists already, of any kind and owner.
    #[error(
        "a network adapter called {name} exists already, and weft did not create it: choose another name"
    )]
    ForeignAdapter {
        /// The requested name.
        name: String,
    },
    /// The library of Wintun is missing.
    #[error("{path} is missing: put the wintun.dll for {processor} from https://www.wintun.net there")]
    NoWintun {
        /// Where it has to be.
        path: String,
        /// The processor that this program is for.
        processor: &'static str,
    },
    /// The library of Wintun has not all functions that are needed.
    #[error(
        "{path} lacks {function}: put the wintun.dll of Wintun 0.14 for {processor} from https://www.wintun.net there"
    )]
    IncompleteWintun {
        /// Where it is.
        path: String,
        /// A function that it lacks.
        function: &'static str,
        /// The processor that this program is for.
        processor: &'static str,
    },
    /// The library of Wintun cannot be loaded.
    #[error(
        "{path} is not for {processor}: put the wintun.dll for {processor} from https://www.wintun.net there"
    )]
    WrongWintun {
        /// Where it is.
        path: String,
        /// The processor that this program is for.
        processor: &'static str,
    },
    /// More queues than a device has on this platform.
    #[error("{queues} queues are too many: a device has at most {MAX_QUEUES}")]
    TooManyQueues {
        /// The requested number.
        queues: usize,
    },
    /// The kernel refused a queue after it had given others.
    #[error(
        "the kernel gives interface {name} {queues} of {wanted} queues ({source}): \
         --packet-threads 1 --tun-threads {queues} needs no more"
    )]
    TooFewQueues {
        /// The requested name.
        name: String,
        /// Number of queues that it gave.
        queues: usize,
        /// The requested number.
        wanted: usize,
        /// The error of the system.
        source: io::Error,
    },
    /// Several packet threads, and threads of the device.
    #[error(
        "{shards} packet threads read and write the device themselves: there are no TUN threads beside several of them"
    )]
    ThreadsOfShards {
        /// The requested number of packet threads.
        shards: usize,
    },
    /// Fewer queues than packet threads, or packet threads of which this platform has one only.
    #[error("{shards} packet threads need a queue each, and the device has {queues}")]
    TooManyShards {
        /// The requested number of packet threads.
        shards: usize,
        /// The number of queues.
        queues: usize,
    },
    /// The number of handed-in descriptors differs from the number of queues.
    #[error("{descriptors} descriptors were handed in for {queues} queues")]
    DescriptorCount {
        /// Number of descriptors.
        descriptors: usize,
        /// Number of queues.
        queues: usize,
    },
    /// A handed-in descriptor cannot be used.
    #[error("handed-in descriptor {index} of {name}: {reason}")]
    Descriptor {
        /// Its index in [`TunConfig::descriptors`].
        index: usize,
        /// The requested name.
        name: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The platform has no implementation.
    #[error("weft has no TUN implementation for {platform} yet")]
    Unsupported {
        /// Name of the platform, as in `std::env::consts::OS`.
        platform: &'static str,
    },
    /// Any other error of the system.
    #[error("cannot {action} for interface {name}: {source}")]
    Io {
        /// The step that failed.
        action: &'static str,
        /// The requested name.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
}

impl OpenError {
    /// Returns the nearest `io::ErrorKind`.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::InvalidName { .. }
            | Self::TooManyQueues { .. }
            | Self::ThreadsOfShards { .. }
            | Self::TooManyShards { .. }
            | Self::DescriptorCount { .. }
            | Self::Descriptor { .. } => io::ErrorKind::InvalidInput,
            Self::Exists { .. }
            | Self::NotTun { .. }
            | Self::AltName { .. }
            | Self::ForeignAdapter { .. } => io::ErrorKind::AlreadyExists,
            Self::PermissionDenied { .. } | Self::DriverForbidden { .. } | Self::NotAdministrator { .. } => {
                io::ErrorKind::PermissionDenied
            }
            Self::WrongWintun { .. } | Self::IncompleteWintun { .. } => io::ErrorKind::InvalidData,
            Self::NoTunDriver | Self::NotTheDriver | Self::NoWintun { .. } => io::ErrorKind::NotFound,
            Self::Unsupported { .. } => io::ErrorKind::Unsupported,
            Self::TooFewQueues { source, .. } | Self::Io { source, .. } => source.kind(),
        }
    }
}

/// Returns how a system removes an interface.
fn removal(system: &str, name: &str) -> String {
    match system {
        "linux" => format!("remove it (ip link del {name})"),
        "freebsd" => format!("remove it (ifconfig {name} destroy)"),
        // The interface ends with the process that has it.
        _ => "end the program that has it".to_owned(),
    }
}

/// Returns the right that only Linux gives without the user.
fn missing_right(system: &str) -> &'static str {
    if system == "linux" { "needs CAP_NET_ADMIN (in a unit of systemd AmbientCapabilities=); " } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_that_of_the_system() {
        assert_eq!(removal("linux", "wg0"), "remove it (ip link del wg0)");
        assert_eq!(removal("freebsd", "tun7"), "remove it (ifconfig tun7 destroy)");
        for system in ["macos", "windows"] {
            assert_eq!(removal(system, "utun7"), "end the program that has it");
        }
        assert!(missing_right("linux").starts_with("needs CAP_NET_ADMIN (in a unit of systemd "));
        assert_eq!(missing_right("freebsd"), "");
    }

    #[test]
    fn every_error_of_a_user_names_what_to_do() {
        let name = || "wg0".to_owned();
        let path = || "wintun.dll".to_owned();
        let function = "WintunSetLogger";
        for (error, remedy, kind) in [
            (OpenError::Exists { name: name() }, "choose another name", io::ErrorKind::AlreadyExists),
            (OpenError::NotTun { name: name() }, "TUN device; choose another", io::ErrorKind::AlreadyExists),
            (
                OpenError::AltName { name: name(), device: "foo".to_owned() },
                "(ip link property del dev foo altname wg0)",
                io::ErrorKind::AlreadyExists,
            ),
            (OpenError::PermissionDenied { name: name() }, "run as root", io::ErrorKind::PermissionDenied),
            (
                OpenError::NotAdministrator { name: name() },
                "run weft as an administrator",
                io::ErrorKind::PermissionDenied,
            ),
            (OpenError::ForeignAdapter { name: name() }, "choose another name", io::ErrorKind::AlreadyExists),
            (
                OpenError::NoWintun { path: path(), processor: "amd64" },
                "put the wintun.dll",
                io::ErrorKind::NotFound,
            ),
            (
                OpenError::WrongWintun { path: path(), processor: "amd64" },
                "put the wintun.dll",
                io::ErrorKind::InvalidData,
            ),
            (
                OpenError::IncompleteWintun { path: path(), function, processor: "amd64" },
                "lacks WintunSetLogger: put the wintun.dll of Wintun 0.14",
                io::ErrorKind::InvalidData,
            ),
        ] {
            let told = error.to_string();
            assert!(told.contains(remedy) && !told.contains('\n'), "{told}");
            assert_eq!(error.kind(), kind, "{told}");
        }
    }
}
