//! Mounts of a test's own, which nobody else sees and which go with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::not_run;

/// Gives the calling thread mounts of its own, which its threads and children share: what is mounted from now on nobody
/// else sees. Makes system calls only, so it may stand between fork and exec.
///
/// Needs CAP_SYS_ADMIN: root, or [`super::enter_user_namespace`] before.
pub fn separate() -> io::Result<()> {
    let none = None::<&Path>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    Ok(mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?)
}

/// Mounts an empty directory in memory over this one. Makes a system call only.
pub fn empty(directory: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?)
}

/// Runs `work` on a thread with mounts of its own, after `prepare` has mounted what it needs; says so for `test` where
/// that is not permitted. A panic in there goes on here.
pub fn run_separate(test: &str, prepare: impl FnOnce() -> io::Result<()> + Send, work: impl FnOnce() + Send) {
    let run = || match separate().and_then(|()| prepare()) {
        Ok(()) => work(),
        Err(error) => not_run(test, &format!("no mounts of its own: {error}")),
    };
    if let Err(panic) = thread::scope(|scope| scope.spawn(run).join()) {
        std::panic::resume_unwind(panic);
    }
}

/// The mounts of a machine that a test makes up. They go with the last process and thread in them.
#[derive(Debug)]
pub struct Mounts(OwnedFd);

impl Mounts {
    /// The mounts of this process with these directories empty.
    pub fn with_empty(directories: &[&str]) -> io::Result<Self> {
        let make = || {
            separate()?;
            directories.iter().try_for_each(|directory| empty(directory))?;
            Ok(Self(File::open("/proc/thread-self/ns/mnt")?.into()))
        };
        thread::scope(|scope| scope.spawn(make).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Has a command run in them.
    pub fn apply(&self, command: &mut Command) -> io::Result<()> {
        let mounts = self.0.try_clone()?;
        // SAFETY: between fork and exec the closure makes a system call only.
        unsafe { command.pre_exec(move || enter(mounts.as_fd())) };
        Ok(())
    }

    /// Moves the calling thread into them, for as long as it lives.
    pub fn enter(&self) -> io::Result<()> {
        // A thread that shares its root and directory with others may not change its mounts.
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
            Err(error) => return not_run("what_is_mounted_is_seen_inside_only", &error.to_string()),
        };
        let files = || std::fs::read_dir("/etc").unwrap().count();
        let before = files();
        let inside = || {
            mounts.enter().unwrap();
            std::fs::write("/etc/made-inside", "").unwrap();
            files()
        };
        assert_eq!(thread::scope(|scope| scope.spawn(inside).join()).unwrap(), 1);
        let mut command = Command::new("ls");
        mounts.apply(&mut command).unwrap();
        let output = command.arg("/etc").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "made-inside\n");
        assert_eq!(files(), before);
        run_separate("what_is_mounted_is_seen_inside_only", || empty("/etc"), || assert_eq!(files(), 0));
        assert_eq!(files(), before);
    }
}
