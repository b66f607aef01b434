//! Creates a device with its queues, or adopts queues that were handed in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;

use super::packet_socket::{is_packet_socket, offload_of};
use super::{Kind, LinuxQueue};
use crate::attached::{PACKET_INFORMATION, describe, has_packet_information, request};
use crate::config::{OpenError, TunConfig, TunOffload};
use crate::device::OpenDevice;
use crate::device::descriptor::set_nonblocking;
use crate::device::vnet_hdr::VNET_HDR;

const IFF_TUN_EXCL: libc::c_int = 0x8000;
/// Whether devices are made with what the other platforms have: one queue of bare packets.
const IS_PORTABLE: bool = cfg!(feature = "portable");
/// Maximum number of queues of a device: the kernel's MAX_TAP_QUEUES.
pub const MAX_QUEUES: usize = if IS_PORTABLE { 1 } else { 256 };
/// Whether a device that weft makes takes super-packets.
pub const SUPER_PACKETS: bool = !IS_PORTABLE;
/// The flags of a device that weft makes.
const QUEUE_FLAGS: libc::c_int = libc::IFF_TUN
    | libc::IFF_NO_PI
    | if IS_PORTABLE { 0 } else { libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE };
/// The kernel's default of the length of a ring.
const DEFAULT_TX_QUEUE_LEN: u64 = 500;
const TCP_OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
const UDP_OFFLOADS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

mod ioctls {
    use nix::sys::ioctl::ioctl_num_type as Number;

    // The numbers are those of <linux/if_tun.h>; the types in them are not the types that are passed.
    nix::ioctl_write_ptr_bad!(set_iff, libc::TUNSETIFF as Number, libc::ifreq);
    nix::ioctl_write_int_bad!(set_offload, libc::TUNSETOFFLOAD as Number);
    nix::ioctl_write_ptr_bad!(set_vnet_hdr_size, libc::TUNSETVNETHDRSZ as Number, libc::c_int);
    nix::ioctl_read_bad!(get_tx_queue_len, libc::SIOCGIFTXQLEN as Number, libc::ifreq);
}

/// Creates the device of `config`, or adopts its descriptors.
pub(super) fn open(config: TunConfig) -> Result<OpenDevice<LinuxQueue>, OpenError> {
    let TunConfig { name, queues, descriptors, offload, namespace, .. } = config;
    let count = queues.max(1);
    if !is_valid_name(&name) {
        return Err(OpenError::InvalidName { name });
    }
    if count > MAX_QUEUES {
        return Err(OpenError::TooManyQueues { queues: count });
    }
    let queues = if descriptors.is_empty() {
        create(&name, count)?.into_iter().map(|queue| LinuxQueue::new(queue, !IS_PORTABLE, None)).collect()
    } else if descriptors.len() == count {
        let adopt = |(index, descriptor): (usize, OwnedFd)| {
            if is_packet_socket(descriptor.as_fd()) {
                return Ok(LinuxQueue::packet_socket(descriptor, namespace.clone()));
            }
            check_adopted(descriptor.as_fd(), &name, count > 1)
                .map(|has_header| LinuxQueue::new(descriptor, has_header, namespace.clone()))
                .map_err(|reason| OpenError::Descriptor { index, name: name.clone(), reason })
        };
        descriptors.into_iter().enumerate().map(adopt).collect::<Result<Vec<_>, _>>()?
    } else {
        return Err(OpenError::DescriptorCount { descriptors: descriptors.len(), queues: count });
    };

    let failed = |action| {
        let name = name.clone();
        move |errno: Errno| OpenError::Io { action, name, source: errno.into() }
    };
    for queue in &queues {
        set_nonblocking(queue.as_fd()).map_err(failed("make the descriptor non-blocking"))?;
        if !matches!(queue.kind, Kind::Vnet(_)) {
            continue;
        }
        let size = VNET_HDR as libc::c_int;
        // SAFETY: the ioctl reads one int from `size`, which lives until it returns.
        unsafe { ioctls::set_vnet_hdr_size(queue.as_raw_fd(), &size) }
            .map_err(failed("set the size of the virtio header"))?;
    }
    let offload = match queues.first() {
        Some(LinuxQueue { kind: Kind::Packet(socket), .. }) if offload => offload_of(socket),
        Some(LinuxQueue { kind: Kind::Packet(_), .. }) | None => TunOffload::default(),
        // Only a virtio header can say which offload work is left on a packet.
        Some(first) => {
            let offload = offload && queues.iter().all(LinuxQueue::has_header);
            set_offload(first.as_fd(), offload).map_err(failed("set offloads"))?
        }
    };
    Ok(OpenDevice { queues, name, offload })
}

/// Reports whether a name is valid: the rules of the kernel's `dev_valid_name`, no control characters, and no
/// '%', which would make the name a pattern.
pub(super) fn is_valid_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_ascii_whitespace() || c.is_ascii_control() || "/:%".contains(c);
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name != "."
        && name != ".."
        && !name.contains(forbidden)
}

pub(super) fn create(name: &str, count: usize) -> Result<Vec<OwnedFd>, OpenError> {
    // tun-rs cannot create a device exclusively. Without exclusive creation, attaching to a multi-queue
    // device of that name succeeds and silently takes a share of its owner's packets. The reservation is a
    // queue that holds the name until tun-rs has attached the queues to keep.
    let reservation = reserve(name)?;
    if IS_PORTABLE {
        return Ok(vec![reservation.into()]);
    }
    let queues = attach(name, count)?;
    drop(reservation);
    Ok(queues)
}

fn reserve(name: &str) -> Result<File, OpenError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(|error| driver_error(name, error))?;
    let request = request(name, QUEUE_FLAGS | IFF_TUN_EXCL);
    attach_to(&file, &request).map_err(|errno| match (errno, name_of_holder(name)) {
        (Errno::EBUSY | Errno::EEXIST | Errno::EINVAL, Some(device)) if device != name => {
            OpenError::AltName { name: name.to_owned(), device }
        }
        (Errno::EBUSY | Errno::EEXIST | Errno::EINVAL, Some(_)) if is_other_kind(name) => {
            OpenError::NotTun { name: name.to_owned() }
        }
        (Errno::EBUSY | Errno::EEXIST, _) | (Errno::EINVAL, Some(_)) => {
            OpenError::Exists { name: name.to_owned() }
        }
        // The request is one of TUN alone.
        (Errno::ENOTTY, _) => OpenError::NotTheDriver,
        _ => open_error("create the device", name, errno.into()),
    })?;
    Ok(file)
}

/// Returns the own name of the interface that has this name, perhaps beside its own.
fn name_of_holder(name: &str) -> Option<String> {
    use nix::net::if_;

    if_::if_indextoname(if_::if_nametoindex(name).ok()?).ok()?.into_string().ok()
}

/// Reports whether an interface is known to be no TUN device. /sys may be that of another namespace.
fn is_other_kind(name: &str) -> bool {
    let directory = Path::new("/sys/class/net").join(name);
    directory.exists() && !directory.join("tun_flags").exists()
}

fn attach(name: &str, count: usize) -> Result<Vec<OwnedFd>, OpenError> {
    let first = tun_rs::DeviceBuilder::new()
        .name(name)
        .inherit_enable_state()
        .with(|builder| {
            builder.packet_information(false).multi_queue(true).offload(true);
        })
        .build_sync()
        .map_err(|error| queue_error(name, 0, count, error))?;
    let mut devices = Vec::with_capacity(count);
    for queues in 1..count {
        devices.push(first.try_clone().map_err(|error| queue_error(name, queues, count, error))?);
    }
    devices.insert(0, first);
    // SAFETY: `into_raw_fd` gives up the only owner of an open descriptor.
    Ok(devices.into_iter().map(|device| unsafe { OwnedFd::from_raw_fd(device.into_raw_fd()) }).collect())
}

/// Turns an open driver into a queue of the device that the request names.
pub(super) fn attach_to(driver: &File, request: &libc::ifreq) -> Result<(), Errno> {
    // SAFETY: the ioctl reads an ifreq. `request` is an ifreq that lives until the ioctl returns.
    unsafe { ioctls::set_iff(driver.as_raw_fd(), request) }.map(drop)
}

/// Returns the reason why the driver could not be opened.
pub(super) fn driver_error(name: &str, error: io::Error) -> OpenError {
    match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
        Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => OpenError::NoTunDriver,
        Errno::EISDIR => OpenError::NotTheDriver,
        Errno::EACCES | Errno::EPERM => OpenError::DriverForbidden { name: name.to_owned() },
        _ => open_error("open /dev/net/tun", name, error),
    }
}

pub(super) fn open_error(action: &'static str, name: &str, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::PermissionDenied => OpenError::PermissionDenied { name },
        _ => OpenError::Io { action, name, source },
    }
}

/// Returns the reason why the kernel gave `queues` of `wanted` queues and no more.
pub(super) fn queue_error(name: &str, queues: usize, wanted: usize, source: io::Error) -> OpenError {
    match Errno::from_raw(source.raw_os_error().unwrap_or_default()) {
        // Fewer queues would not help.
        Errno::EPERM | Errno::EACCES | Errno::EMFILE | Errno::ENFILE => {}
        _ if queues == 0 => {}
        _ => return OpenError::TooFewQueues { name: name.to_owned(), queues, wanted, source },
    }
    open_error("attach a queue", name, source)
}

/// Checks that a handed-in descriptor is a queue of `name`, and returns whether it has virtio headers.
fn check_adopted(descriptor: BorrowedFd<'_>, name: &str, multi_queue: bool) -> Result<bool, String> {
    let (actual, flags) =
        describe(descriptor).map_err(|errno| format!("not an attached TUN queue ({})", errno.desc()))?;
    if actual != name {
        return Err(format!("belongs to interface {actual}"));
    }
    if flags & libc::IFF_TUN == 0 {
        return Err("was attached without IFF_TUN".to_owned());
    }
    if multi_queue && flags & libc::IFF_MULTI_QUEUE == 0 {
        return Err("was attached without IFF_MULTI_QUEUE".to_owned());
    }
    let has_header = flags & libc::IFF_VNET_HDR != 0;
    if !has_header && has_packet_information(descriptor) {
        return Err(PACKET_INFORMATION.to_owned());
    }
    Ok(has_header)
}

fn set_offload(queue: BorrowedFd<'_>, wanted: bool) -> Result<TunOffload, Errno> {
    // SAFETY: the argument of this ioctl is a number, not a pointer.
    let set = |mask: libc::c_uint| unsafe { ioctls::set_offload(queue.as_raw_fd(), mask as libc::c_int) };
    if !wanted {
        set(0)?;
        return Ok(TunOffload::default());
    }
    if set(TCP_OFFLOADS | UDP_OFFLOADS).is_ok() {
        return Ok(TunOffload { tcp: true, udp: true });
    }
    set(TCP_OFFLOADS)?;
    Ok(TunOffload { tcp: true, udp: false })
}

/// Returns the number of packets that a ring of the device may hold; the kernel's default if it cannot be
/// read.
pub(super) fn tx_queue_len(name: &str) -> u64 {
    let kind = nix::sys::socket::SockType::Datagram;
    let flags = nix::sys::socket::SockFlag::SOCK_CLOEXEC;
    let Ok(socket) = nix::sys::socket::socket(nix::sys::socket::AddressFamily::Inet, kind, flags, None)
    else {
        return DEFAULT_TX_QUEUE_LEN;
    };
    tx_queue_len_by(socket.as_fd(), name)
}

/// Returns the number of packets that a ring of the device in the namespace of a socket may hold, as
/// [`tx_queue_len`] does.
pub(super) fn tx_queue_len_by(socket: BorrowedFd<'_>, name: &str) -> u64 {
    let mut answer = request(name, 0);
    // SAFETY: the ioctl reads and writes an ifreq. `answer` is an ifreq that lives until the ioctl returns.
    match unsafe { ioctls::get_tx_queue_len(socket.as_raw_fd(), &mut answer) } {
        // SAFETY: the kernel filled in the length, an int, which `ifru_metric` is too.
        Ok(_) => unsafe { answer.ifr_ifru.ifru_metric }.max(0) as u64,
        Err(_) => DEFAULT_TX_QUEUE_LEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_kernels_rules() {
        for valid in ["wg0", "a", "fifteen-letters", "wg.1"] {
            assert!(is_valid_name(valid), "{valid}");
        }
        for invalid in ["", ".", "..", "sixteen-letters!", "a b", "a/b", "a:b", "tun%d", "a\0b"] {
            assert!(!is_valid_name(invalid), "{invalid}");
        }
    }

    #[test]
    fn a_descriptor_that_is_no_tun_is_refused() {
        let (socket, _other) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let config = TunConfig { descriptors: vec![socket.into()], ..TunConfig::new("weft-none") };
        assert!(matches!(open(config), Err(OpenError::Descriptor { index: 0, .. })));
    }

    #[test]
    fn the_number_of_descriptors_is_the_number_of_queues() {
        let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let config = TunConfig { descriptors: vec![a.into(), b.into()], ..TunConfig::new("weft-none") };
        assert!(matches!(open(config), Err(OpenError::DescriptorCount { descriptors: 2, queues: 1 })));
    }
}
