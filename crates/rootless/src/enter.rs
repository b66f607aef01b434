//! A command enters the namespaces: as the user, without capabilities, in the same directory, and with
//! sockets of the network namespace alone.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::unistd::chdir;

use crate::families;

/// The error of [`Command::spawn`] if the command could not enter: one that no execution of a program has.
pub const ENTRY_FAILED: i32 = libc::ENOLINK;

/// The user, network and mount namespace, to be entered. Their owner may do so: a process of the same user
/// that is in the user namespace around them.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// The user and the network namespace.
    namespaces: Arc<[OwnedFd; 2]>,
    mounts: Arc<OwnedFd>,
}

impl Entrance {
    pub(crate) fn new(namespaces: Arc<[OwnedFd; 2]>, mounts: OwnedFd) -> Self {
        Self { namespaces, mounts: Arc::new(mounts) }
    }

    /// Makes a command run in the namespaces, in the directory of this process.
    ///
    /// # Errors
    /// This process has no working directory.
    pub fn apply(&self, command: &mut Command) -> io::Result<()> {
        let directory = std::env::current_dir()?;
        let directory = CString::new(directory.as_os_str().as_bytes())?;
        let Self { namespaces, mounts } = self.clone();
        let enter = move || {
            let [user, network] = &*namespaces;
            setns(user.as_fd(), CloneFlags::CLONE_NEWUSER)?;
            setns(network.as_fd(), CloneFlags::CLONE_NEWNET)?;
            setns(mounts.as_fd(), CloneFlags::CLONE_NEWNS)?;
            // The mount namespace has another root, from which the path leads to the same directory.
            chdir(directory.as_c_str())?;
            give_up_capabilities()?;
            prctl::set_no_new_privs()?;
            families::confine()
        };
        let enter = move || enter().map_err(|_: Errno| io::Error::from_raw_os_error(ENTRY_FAILED));
        // SAFETY: between fork and exec the closure makes system calls only: no allocation, no lock.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

/// Gives up the capabilities that entering a user namespace gives. PR_SET_NO_NEW_PRIVS keeps programs of root
/// and those with capabilities of their file from getting any. The bounding set stays: without it, ping(8)
/// cannot be executed.
fn give_up_capabilities() -> Result<(), Errno> {
    /// _LINUX_CAPABILITY_VERSION_3 of <linux/capability.h>.
    const VERSION: u32 = 0x2008_0522;
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let header: [u32; 2] = [VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: the call reads a header of two words and, for this version, two sets of three words.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(drop)
}
