//! Adopts the queues of an existing device: checks them, adds missing queues, removes surplus queues. The
//! previous holder (a service manager, the previous daemon) may have used another number of queues.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use nix::errno::Errno;

use super::create::{self, MAX_QUEUES};
use crate::attached::{describe, request};
use crate::config::OpenError;

mod ioctls {
    use nix::sys::ioctl::ioctl_num_type as Number;

    nix::ioctl_write_ptr_bad!(set_queue, libc::TUNSETQUEUE as Number, libc::ifreq);
    nix::ioctl_none_bad!(get_network, libc::TUNGETDEVNETNS as Number);
}

/// Returns `count` attached queues of the device `name` in the network namespace of this thread: those in
/// `existing`, which must have passed [`check_queue`], then new queues. Surplus queues are detached and
/// closed. If `existing` is empty, the device is created. A device that was made for one queue keeps one.
///
/// Needs CAP_NET_ADMIN, unless `existing` has `count` queues.
///
/// # Errors
/// Those of [`crate::open`].
pub fn open_queues(name: &str, mut existing: Vec<OwnedFd>, count: usize) -> Result<Vec<OwnedFd>, OpenError> {
    if !create::is_valid_name(name) {
        return Err(OpenError::InvalidName { name: name.to_owned() });
    }
    if !(1..=MAX_QUEUES).contains(&count) {
        return Err(OpenError::TooManyQueues { queues: count });
    }
    if existing.is_empty() {
        return create::create(name, count);
    }
    for (index, surplus) in existing.drain(count.min(existing.len())..).enumerate() {
        // Closing is not enough if another process holds the queue: the kernel would continue to fill it.
        detach(surplus.as_fd()).map_err(|errno| OpenError::Io {
            action: "detach a queue",
            name: format!("{name}, queue {}", count + index),
            source: errno.into(),
        })?;
    }
    let failed = |errno: Errno| create::open_error("attach a queue", name, errno.into());
    let (_, flags) = describe(existing[0].as_fd()).map_err(failed)?;
    while existing.len() < count && flags & libc::IFF_MULTI_QUEUE != 0 {
        existing.push(attach(name, flags, existing.len(), count)?);
    }
    Ok(existing)
}

/// Checks that a descriptor is an attached queue of the device `name` in the network namespace of this
/// thread, for IP packets. It may have virtio headers or not, and the device several queues or one.
///
/// # Errors
/// A description of what the descriptor is instead.
pub fn check_queue(descriptor: &OwnedFd, name: &str) -> Result<(), String> {
    let (actual, flags) = describe(descriptor.as_fd())
        .map_err(|errno| format!("it is not an attached TUN queue ({})", errno.desc()))?;
    if actual != name {
        return Err(format!("it belongs to interface {actual}"));
    }
    if flags & libc::IFF_TUN == 0 {
        return Err("it was attached without IFF_TUN".to_owned());
    }
    if flags & libc::IFF_DETACH_QUEUE != 0 {
        return Err("it was detached from its device".to_owned());
    }
    match is_elsewhere(descriptor.as_fd()) {
        Ok(true) => Err(format!("interface {name} was moved to another network namespace")),
        // An old kernel does not report the namespace.
        Ok(false) | Err(_) => Ok(()),
    }
}

/// Attaches a queue to a device with `flags`, which has `queues` of `wanted` queues. Other flags would change
/// those of all its queues.
fn attach(name: &str, flags: libc::c_int, queues: usize, wanted: usize) -> Result<OwnedFd, OpenError> {
    let failed = |source| create::queue_error(name, queues, wanted, source);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(|error| create::driver_error(name, error))?;
    let flags = flags & (libc::IFF_TUN | libc::IFF_VNET_HDR | libc::IFF_MULTI_QUEUE);
    let request = request(name, flags | libc::IFF_NO_PI);
    create::attach_to(&file, &request).map_err(|errno| failed(errno.into()))?;
    let descriptor = OwnedFd::from(file);
    // If the name was free, the kernel has created another device: check the queue like an existing queue.
    check_queue(&descriptor, name).map_err(|reason| failed(io::Error::other(reason)))?;
    Ok(descriptor)
}

fn detach(descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let request = request("", libc::IFF_DETACH_QUEUE);
    // SAFETY: the ioctl reads an ifreq. `request` is an ifreq that lives until the ioctl returns.
    unsafe { ioctls::set_queue(descriptor.as_raw_fd(), &request) }.map(drop)
}

/// Reports whether the device is in another network namespace than this thread.
fn is_elsewhere(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: the ioctl takes no argument.
    let network = unsafe { ioctls::get_network(descriptor.as_raw_fd()) }?;
    // SAFETY: the kernel has just created this descriptor for this call, and nothing else owns it.
    let network = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(network) });
    let (theirs, ours) = (network.metadata()?, std::fs::metadata("/proc/thread-self/ns/net")?);
    Ok((theirs.dev(), theirs.ino()) != (ours.dev(), ours.ino()))
}
