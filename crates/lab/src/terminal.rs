//! Pseudo-terminals (pty(7)).

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

/// Opens a new terminal, and returns its two ends, which no other process has: closing the first one hangs
/// up.
pub fn open() -> io::Result<(File, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    Ok((ours.into(), theirs))
}

/// Starts a command as the leader of a session that this end of a terminal controls.
pub fn attach(command: &mut Command, end: &OwnedFd) -> io::Result<()> {
    command.stdin(end.try_clone()?).stdout(end.try_clone()?).stderr(end.try_clone()?);
    let take = || {
        rustix::process::setsid()?;
        Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
    };
    // SAFETY: between fork and exec the closure only makes system calls.
    unsafe { command.pre_exec(take) };
    Ok(())
}
