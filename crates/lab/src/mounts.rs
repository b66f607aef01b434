//! Private mounts for tests, removed when the test ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::here;
use super::netns::on_a_thread;

/// Moves the calling thread into a new mount namespace, which threads and children it starts inherit: mounts
/// made from now on are invisible elsewhere. Makes system calls only, so it is safe between fork and exec.
///
/// Needs CAP_SYS_ADMIN: root, or an earlier [`super::enter_user_namespace`].
pub fn separate() -> io::Result<()> {
    let none = None::<&Path>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    Ok(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?)
}

/// Mounts an empty tmpfs over this directory. Makes a system call only.
pub fn empty(directory: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?)
}

/// Runs a command where /var/run is private and empty: there daemons of several tests, which give their
/// interfaces the same name, would meet at the socket for wg(8).
pub fn separate_sockets(command: &mut Command) {
    let prepare = || {
        separate()?;
        empty("/var/run")
    };
    // SAFETY: between fork and exec the closure only makes system calls; short paths are put on the stack.
    unsafe { command.pre_exec(prepare) };
}

/// Runs `work` on a thread with private mounts, after `prepare` has made them; calls [`here::not_run`] where
/// that is not permitted. A panic in `work` is resumed in the caller.
pub fn run_separate(prepare: impl FnOnce() -> io::Result<()> + Send, work: impl FnOnce() + Send) {
    on_a_thread(|| match separate().and_then(|()| prepare()) {
        Ok(()) => work(),
        Err(error) => here::not_run(&format!("cannot make a mount namespace: {error}")),
    });
}

/// A mount namespace that simulates another machine's file system. It is removed with the last process and
/// thread in it.
#[derive(Debug)]
pub struct Mounts(OwnedFd);

impl Mounts {
    /// Creates a copy of this process's mounts in which these directories are empty.
    pub fn with_empty(directories: &[&str]) -> io::Result<Self> {
        let make = || {
            separate()?;
            directories.iter().try_for_each(|directory| empty(directory))?;
            Ok(Self(File::open("/proc/thread-self/ns/mnt")?.into()))
        };
        on_a_thread(make)
    }

    /// Makes a command run in these mounts.
    pub fn apply(&self, command: &mut Command) -> io::Result<()> {
        let mounts = self.0.try_clone()?;
        // SAFETY: between fork and exec the closure makes a system call only.
        unsafe { command.pre_exec(move || enter(mounts.as_fd())) };
        Ok(())
    }

    /// Moves the calling thread into these mounts, for the rest of its life.
    pub fn enter(&self) -> io::Result<()> {
        // A thread that shares its root and working directory with others may not change its mount namespace.
        unshare(CloneFlags::CLONE_FS)?;
        enter(self.0.as_fd())
    }
}

fn enter(mounts: BorrowedFd<'_>) -> io::Result<()> {
    Ok(setns(mounts, CloneFlags::CLONE_NEWNS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_seen_inside_only() {
        let mounts = match Mounts::with_empty(&["/etc"]) {
            Ok(mounts) => mounts,
            Err(error) => return here::not_run(&error.to_string()),
        };
        let files = || std::fs::read_dir("/etc").unwrap().count();
        let before = files();
        let inside = || {
            mounts.enter().unwrap();
            std::fs::write("/etc/made-inside", "").unwrap();
            files()
        };
        assert_eq!(on_a_thread(inside), 1);
        let mut command = Command::new("ls");
        mounts.apply(&mut command).unwrap();
        let output = command.arg("/etc").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "made-inside\n");
        assert_eq!(files(), before);
        run_separate(|| empty("/etc"), || assert_eq!(files(), 0));
        assert_eq!(files(), before);
    }
}
