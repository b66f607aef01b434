//! What /proc says of sockets, devices and descriptors.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use nix::net::if_::if_nametoindex;

use super::{Held, Holder, is_unfinished};
use crate::proc_net::{self, Socket};

/// A Unix socket that listens, in the flags of /proc/net/unix (__SO_ACCEPTCON).
const ACCEPTS: u32 = 1 << 16;
const NETWORK: &str = "/proc/thread-self/ns/net";

pub(super) fn find(held: Held<'_>) -> Holder {
    let sockets: Vec<u64> = match held {
        Held::Device(name) => return device(name),
        // Any free port.
        Held::Udp(0) => return Holder::Unknown,
        Held::Udp(port) => internet("udp", |socket| socket.local.port() == port),
        Held::Tcp(wanted) => internet("tcp", |socket| socket.listens && exclude(socket.local, wanted)),
        Held::Socket(path) => unix(path),
        Held::Lock(path) => return lock(path),
    };
    if sockets.is_empty() {
        return Holder::Unknown;
    }
    let names: Vec<String> = sockets.iter().map(|inode| format!("socket:[{inode}]")).collect();
    process(|descriptor| {
        fs::read_link(descriptor).is_ok_and(|link| names.iter().any(|name| link == Path::new(name)))
    })
}

/// Looks for the process that has a queue of a TUN device. Devices of other namespaces may have its name.
fn device(name: &str) -> Holder {
    if if_nametoindex(name).is_err() {
        return Holder::Unknown;
    }
    let here = fs::read_link(NETWORK).ok();
    process(|descriptor| {
        fs::read_link(descriptor).is_ok_and(|link| link == Path::new("/dev/net/tun"))
            && device_of(descriptor).is_some_and(|device| device == name)
            && process_of(descriptor)
                .is_some_and(|process| fs::read_link(process.join("ns/net")).ok() == here)
    })
}

/// Looks for the process that has the lock of a file. The one that has locked it may have handed it on.
fn lock(path: &Path) -> Holder {
    let Ok(path) = path.canonicalize() else { return Holder::Unknown };
    process(|descriptor| {
        fs::read_link(descriptor).is_ok_and(|link| link == path)
            && about(descriptor).is_some_and(|about| about.lines().any(|line| line.starts_with("lock:")))
    })
}

/// Returns the name of the device whose queue a descriptor is, empty if the device is gone; `None` for
/// another descriptor.
fn device_of(descriptor: &Path) -> Option<String> {
    about(descriptor)?.lines().find_map(|line| Some(line.strip_prefix("iff:")?.trim().to_owned()))
}

/// Returns what the kernel says of a descriptor.
fn about(descriptor: &Path) -> Option<String> {
    fs::read_to_string(process_of(descriptor)?.join("fdinfo").join(descriptor.file_name()?)).ok()
}

/// Returns /proc/ID of the path /proc/ID/fd/NUMBER.
fn process_of(descriptor: &Path) -> Option<&Path> {
    descriptor.parent()?.parent()
}

/// Returns the sockets of a protocol that are wanted.
fn internet(protocol: &str, is_wanted: impl Fn(&Socket) -> bool) -> Vec<u64> {
    let sockets = proc_net::sockets(Path::new(proc_net::DIRECTORY), protocol).unwrap_or_default();
    sockets.into_iter().filter(is_wanted).map(|socket| socket.inode).collect()
}

/// Reports whether two sockets cannot listen at both addresses.
fn exclude(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

/// Returns the inode of the Unix socket that listens on a path.
fn unix(path: &Path) -> Vec<u64> {
    // /var/run is a link on most machines, and the socket may have been made by either name.
    let resolved = path.parent().and_then(|parent| Some(parent.canonicalize().ok()?.join(path.file_name()?)));
    let names = [Some(path), resolved.as_deref()];
    let table = fs::read("/proc/thread-self/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let inode = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(columns.get(3)?, 16).ok()?;
        // A socket keeps the name that it was bound under.
        let bound = Path::new(columns.get(7)?);
        let is_named = names.iter().flatten().any(|name| *name == bound || is_unfinished(bound, name));
        (flags & ACCEPTS != 0 && is_named).then_some(columns.get(6)?.parse().ok()?)
    };
    table.lines().skip(1).filter_map(inode).collect()
}

/// Returns the first process with such a descriptor, which is given as /proc/ID/fd/NUMBER.
fn process(is_wanted: impl Fn(&Path) -> bool) -> Holder {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        let descriptors = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        if descriptors.map(|entry| entry.path()).any(|descriptor| is_wanted(&descriptor)) {
            let program = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            return Holder::Process { id, program: program.trim().escape_debug().to_string() };
        }
    }
    Holder::OutOfSight
}
