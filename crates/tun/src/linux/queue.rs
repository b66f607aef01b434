//! A queue of a TUN device: its descriptor, how it is created or adopted, and the two system calls that every
//! packet goes through. Everything else in `linux/` builds on this file.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use weft_tunnel::{MAX_PACKET, TAILROOM};

use super::vnet_hdr::{self, VNET_HDR};
use crate::batch::Slab;
use crate::config::{MAX_QUEUES, OpenError, TunConfig, TunOffload};

/// Bytes that one read may need: virtio header, the longest super-packet (IPv6 does not count its header in
/// the length), and the tail that encryption may write into.
pub(super) const READ_ROOM: usize = VNET_HDR + weft_tunnel::ip::IPV6_HEADER + MAX_PACKET + TAILROOM;

const IFF_TUN_EXCL: libc::c_int = 0x8000;
pub(super) const QUEUE_FLAGS: libc::c_int = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
const TCP_OFFLOADS: libc::c_uint = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
const UDP_OFFLOADS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

mod ioctls {
    use nix::sys::ioctl::ioctl_num_type as Number;

    // The numbers are those of <linux/if_tun.h>; the types in them are not the types that are passed.
    nix::ioctl_write_ptr_bad!(set_iff, libc::TUNSETIFF as Number, libc::ifreq);
    nix::ioctl_read_bad!(get_iff, libc::TUNGETIFF as Number, libc::ifreq);
    nix::ioctl_write_int_bad!(set_offload, libc::TUNSETOFFLOAD as Number);
    nix::ioctl_write_ptr_bad!(set_vnet_hdr_size, libc::TUNSETVNETHDRSZ as Number, libc::c_int);
    nix::ioctl_read_bad!(get_tx_queue_len, libc::SIOCGIFTXQLEN as Number, libc::ifreq);
}

/// An attached queue of a device.
#[derive(Debug)]
pub(super) struct Queue {
    descriptor: OwnedFd,
    /// Whether a virtio header stands before each packet.
    has_header: bool,
}

impl Queue {
    /// Returns a queue with a virtio header before each packet. `descriptor` may be a stand-in for a TUN.
    pub(super) fn with_header(descriptor: OwnedFd) -> Self {
        Self { descriptor, has_header: true }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// The result of opening: the queues, the name, and the offloads that the kernel accepted.
pub(super) struct Opened {
    pub(super) queues: Vec<Queue>,
    pub(super) name: String,
    pub(super) offload: TunOffload,
}

/// Creates the device of `config`, or adopts its descriptors.
pub(super) fn open(config: TunConfig) -> Result<Opened, OpenError> {
    let TunConfig { name, queues, threads: _, descriptors, offload } = config;
    let count = queues.max(1);
    if !is_valid_name(&name) {
        return Err(OpenError::InvalidName { name });
    }
    if count > MAX_QUEUES {
        return Err(OpenError::TooManyQueues { queues: count });
    }
    let queues = if descriptors.is_empty() {
        create(&name, count)?.into_iter().map(Queue::with_header).collect()
    } else if descriptors.len() == count {
        let adopt = |(index, descriptor): (usize, OwnedFd)| {
            check_adopted(descriptor.as_fd(), &name, count > 1)
                .map(|has_header| Queue { descriptor, has_header })
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
        if !queue.has_header {
            continue;
        }
        let size = VNET_HDR as libc::c_int;
        // SAFETY: the ioctl reads one int from `size`, which lives until it returns.
        unsafe { ioctls::set_vnet_hdr_size(queue.as_raw_fd(), &size) }
            .map_err(failed("set the size of the virtio header"))?;
    }
    let offload = match queues.first() {
        // Only a virtio header can say which offload work is left on a packet.
        Some(first) => {
            let offload = offload && queues.iter().all(|queue| queue.has_header);
            set_offload(first.as_fd(), offload).map_err(failed("set offloads"))?
        }
        None => TunOffload::default(),
    };
    Ok(Opened { queues, name, offload })
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
    let queues = attach(name, count).map_err(|error| open_error("attach a queue", name, error))?;
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
    let request = request(name, QUEUE_FLAGS | libc::IFF_MULTI_QUEUE | IFF_TUN_EXCL);
    attach_to(&file, &request).map_err(|errno| match errno {
        Errno::EBUSY | Errno::EEXIST => OpenError::Exists { name: name.to_owned() },
        // The name belongs to an interface of another kind.
        Errno::EINVAL if nix::net::if_::if_nametoindex(name).is_ok() => {
            OpenError::Exists { name: name.to_owned() }
        }
        _ => open_error("create the device", name, errno.into()),
    })?;
    Ok(file)
}

fn attach(name: &str, count: usize) -> io::Result<Vec<OwnedFd>> {
    let first = tun_rs::DeviceBuilder::new()
        .name(name)
        .inherit_enable_state()
        .with(|builder| {
            builder.packet_information(false).multi_queue(true).offload(true);
        })
        .build_sync()?;
    let mut devices = Vec::with_capacity(count);
    for _ in 1..count {
        devices.push(first.try_clone()?);
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

pub(super) fn request(name: &str, flags: libc::c_int) -> libc::ifreq {
    let mut bytes = [0; libc::IFNAMSIZ];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    libc::ifreq {
        ifr_name: bytes,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    }
}

/// Returns the name of the device that a queue is attached to.
///
/// # Errors
/// The descriptor is not an attached queue.
pub fn name_of_queue(descriptor: &OwnedFd) -> io::Result<String> {
    let (name, _) = describe(descriptor.as_fd())
        .map_err(|errno| io::Error::other(format!("it is not an attached TUN queue ({})", errno.desc())))?;
    Ok(name)
}

/// Returns the name of the device that a queue is attached to, and the flags of both.
pub(super) fn describe(descriptor: BorrowedFd<'_>) -> Result<(String, libc::c_int), Errno> {
    let mut answer = request("", 0);
    // SAFETY: the ioctl writes an ifreq. `answer` is an ifreq that lives until the ioctl returns.
    unsafe { ioctls::get_iff(descriptor.as_raw_fd(), &mut answer) }?;
    // SAFETY: the kernel filled in the flags; any bit pattern is a c_short.
    let flags = libc::c_int::from(unsafe { answer.ifr_ifru.ifru_flags });
    let bytes = answer.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned();
    Ok((name, flags))
}

/// Checks that a handed-in descriptor is a queue of `name`, and returns whether it has virtio headers.
/// `IFF_NO_PI` cannot be checked: the kernel returns another flag of the same value.
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
    Ok(flags & libc::IFF_VNET_HDR != 0)
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

/// Makes reads and writes fail with EAGAIN instead of waiting.
pub(super) fn set_nonblocking(descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFL)?);
    fcntl(descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)
}

/// Returns the number of packets that a ring of the device may hold; the kernel's default if it cannot be
/// read.
pub(super) fn tx_queue_len(name: &str) -> u64 {
    /// The kernel's default for a TUN.
    const DEFAULT: u64 = 500;
    let kind = nix::sys::socket::SockType::Datagram;
    let flags = nix::sys::socket::SockFlag::SOCK_CLOEXEC;
    let Ok(socket) = nix::sys::socket::socket(nix::sys::socket::AddressFamily::Inet, kind, flags, None)
    else {
        return DEFAULT;
    };
    let mut answer = request(name, 0);
    // SAFETY: the ioctl reads and writes an ifreq. `answer` is an ifreq that lives until the ioctl returns.
    match unsafe { ioctls::get_tx_queue_len(socket.as_raw_fd(), &mut answer) } {
        // SAFETY: the kernel filled in the length, an int, which `ifru_metric` is too.
        Ok(_) => unsafe { answer.ifr_ifru.ifru_metric }.max(0) as u64,
        Err(_) => DEFAULT,
    }
}

/// Reports whether a read would return at once now, with a packet or an error.
pub(super) fn is_readable(queue: BorrowedFd<'_>) -> bool {
    let mut wait = [PollFd::new(queue, PollFlags::POLLIN)];
    !matches!(poll(&mut wait, PollTimeout::ZERO), Ok(0))
}

/// The result of one read.
pub(super) enum Read {
    /// A packet of `bytes` bytes, which is `segments` packets on the wire, was added to the slab.
    Packet { bytes: u64, segments: u64 },
    /// The packet is malformed; nothing was added to the slab.
    Malformed,
    /// No packet waits.
    Empty,
    /// The device does not exist any more.
    Gone,
}

/// Reads one packet into `slab`, which must have [`READ_ROOM`] bytes free.
pub(super) fn read(queue: &Queue, slab: &mut Slab) -> Read {
    let spare = slab.spare_mut();
    let room = spare.len().min(READ_ROOM) - TAILROOM;
    let mut own_header = 0;
    if !queue.has_header {
        own_header = VNET_HDR;
        spare[..VNET_HDR].copy_from_slice(&vnet_hdr::NOTHING_TO_DO);
    }
    let read = loop {
        match nix::unistd::read(queue, &mut spare[own_header..room]) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    let len = match read {
        Ok(0) => return Read::Gone,
        Ok(len) => own_header + len,
        Err(Errno::EAGAIN) => return Read::Empty,
        // The kernel cannot describe the packet in a virtio header.
        Err(Errno::EINVAL) => return Read::Malformed,
        Err(Errno::EBADFD) => return Read::Gone,
        Err(errno) => {
            tracing::error!(error = errno.desc(), "reading from the TUN failed for good");
            return Read::Gone;
        }
    };
    let Some((header, packet)) = spare[..len].split_first_chunk::<VNET_HDR>() else {
        return Read::Malformed;
    };
    let Ok((offload, segments)) = vnet_hdr::decode(header, packet) else {
        return Read::Malformed;
    };
    let bytes = packet.len();
    if slab.commit(VNET_HDR, bytes, offload) {
        Read::Packet { bytes: bytes as u64, segments }
    } else {
        Read::Malformed
    }
}

/// Writes one packet. The first piece is the virtio header, which is left out for a queue without headers.
pub(super) fn write(queue: &Queue, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
    let pieces = if queue.has_header { pieces } else { pieces.get(1..).unwrap_or_default() };
    loop {
        match nix::sys::uio::writev(queue, pieces) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
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
