//! Which network namespace this is, and which processes are in another one: /run, where interfaces are found
//! by their names, is often common to several network namespaces.

use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkNamespace {
    /// The boot id of the machine.
    boot: String,
    /// Its inode, which a later namespace may have too.
    inode: u64,
    /// The number that no other namespace has until the machine restarts (Linux 5.14).
    cookie: Option<u64>,
}

impl NetworkNamespace {
    /// Returns the namespace of this thread, if the system reports it.
    pub(crate) fn ours() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { boot, inode: inode_of(&link_of("thread-self")?)?, cookie: cookie() })
    }

    /// Reports whether it is seen to be another namespace. Of the time before a restart of the machine
    /// nothing is left, and nothing can be told.
    pub(crate) fn is_another_than(&self, other: &Self) -> bool {
        self.boot == other.boot
            && match (self.cookie, other.cookie) {
                (Some(own), Some(theirs)) => own != theirs,
                _ => self.inode != other.inode,
            }
    }

    /// Reports whether it still exists: it is mounted, as `ip netns` does, or a process is in it.
    pub(crate) fn exists(&self) -> bool {
        let link = format!("net:[{}]", self.inode);
        // proc_pid_mountinfo(5): the fourth field is what is mounted.
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let has_process = |entry: fs::DirEntry| {
            entry.file_name().to_str().and_then(link_of).as_deref() == Some(Path::new(&link))
        };
        mounts.lines().any(|line| line.split(' ').nth(3) == Some(&link))
            || fs::read_dir("/proc").into_iter().flatten().flatten().any(has_process)
    }

    /// Returns a number for names of files.
    pub(crate) fn id(&self) -> u64 {
        self.cookie.unwrap_or(self.inode)
    }
}

/// Returns the processes among the ancestors of this process that are in another network namespace than this
/// thread, the nearest first.
pub(crate) fn ancestors_elsewhere() -> impl Iterator<Item = u32> {
    let parent = |process: &u32| parent_of(*process).filter(|parent| *parent != 0);
    std::iter::successors(parent_of(std::process::id()), parent).filter(|process| is_elsewhere(*process))
}

/// Reports whether a process is seen to be in another network namespace than this thread.
pub(crate) fn is_elsewhere(process: u32) -> bool {
    match (link_of(&process.to_string()), link_of("thread-self")) {
        (Some(theirs), Some(ours)) => theirs != ours,
        _ => false,
    }
}

/// Reports whether there is a device of this name in the network namespace of this thread.
pub fn has_device(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}

fn link_of(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Reads the inode from `net:[4026531840]`.
fn inode_of(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Reports whether the kernel numbers the users of sockets in the network namespace of this thread as it does
/// for this process. It does not where the network namespace is that of a container with users apart, which
/// root has entered alone.
pub(crate) fn counts_users_as_we_do() -> bool {
    /// linux/nsfs.h: returns a descriptor of the user namespace that a namespace belongs to.
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    let owner = || {
        let network = fs::File::open("/proc/thread-self/ns/net").ok()?;
        // SAFETY: the request takes no argument.
        let owner = unsafe { libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) };
        // SAFETY: it is a new descriptor, which has no other owner.
        let owner = (owner >= 0).then(|| unsafe { OwnedFd::from_raw_fd(owner) })?;
        fs::File::from(owner).metadata().ok()
    };
    let ours = || fs::metadata("/proc/self/ns/user").ok();
    // Where it cannot be told, it is the usual case.
    let Some((owner, ours)) = owner().zip(ours()) else { return true };
    owner.ino() == ours.ino()
}

fn cookie() -> Option<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound().ok()?;
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to the number.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(cookie)
}

/// Returns the parent of a process (proc_pid_stat(5), field 4).
fn parent_of(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use weft_lab::{Namespace, here};

    use super::*;

    #[test]
    fn only_what_is_seen_to_be_elsewhere_is_elsewhere() {
        assert!(!is_elsewhere(std::process::id()));
        assert_eq!(ancestors_elsewhere().next(), None);
        // The namespace of this process cannot be read.
        assert!(!is_elsewhere(u32::MAX));
        if !here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("netns").unwrap();
        let mut child = namespace.command("sleep").arg("60").spawn().unwrap();
        namespace.run(|| {
            assert!(!is_elsewhere(child.id()));
            assert!(is_elsewhere(std::process::id()), "the process is where its first thread is");
            let parent = std::os::unix::process::parent_id();
            assert_eq!(ancestors_elsewhere().next(), Some(parent));
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn users_are_counted_as_here_except_in_the_network_of_a_container_with_users_apart() {
        if !here::namespaces_permitted() || !here::installed(&["unshare"]) {
            return;
        }
        let namespace = Namespace::new("netns").unwrap();
        assert!(namespace.run(counts_users_as_we_do));
        let mut container = namespace.command("unshare");
        container.args(["-U", "-n", "sh", "-c", "echo; exec sleep 60"]).stdout(std::process::Stdio::piped());
        let mut container = container.spawn().unwrap();
        std::io::Read::read_exact(container.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let entered = Namespace::of_process("container", container.id()).unwrap();
        assert!(!entered.run(counts_users_as_we_do));
        container.kill().unwrap();
        container.wait().unwrap();
    }
}
