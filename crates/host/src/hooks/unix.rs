//! The process of a command, and what it has started.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Puts a command into a process group, so that a signal reaches all that it has started. On a terminal it
/// stays in the group of weft: it may ask the user for something, and Ctrl-C reaches both.
pub(super) fn set_up(command: &mut Command) {
    if !has_terminal() {
        command.process_group(0);
    }
}

fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Asks the processes of a command that was not reaped yet to end, or kills them.
pub(super) fn end(child: &Child, kills: bool) {
    let signal = if kills { Signal::SIGKILL } else { Signal::SIGTERM };
    let process = Pid::from_raw(child.id().cast_signed());
    let group = Pid::from_raw(-process.as_raw());
    // The terminal may be gone since the start, so the group says whether there is one.
    if kill(group, signal).is_err() {
        let _gone = kill(process, signal);
    }
}

/// Waits until a child has ended, and does not reap it.
#[cfg(target_os = "linux")]
pub(super) fn wait_for_end(process: u32) {
    use nix::errno::Errno;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    let process = Pid::from_raw(process.cast_signed());
    while waitid(Id::Pid(process), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
}

/// Waits until a child has ended, and does not reap it.
#[cfg(not(target_os = "linux"))]
pub(super) fn wait_for_end(process: u32) {
    use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};

    let flags = EvFlags::EV_ADD | EvFlags::EV_ONESHOT;
    let watch = KEvent::new(process as usize, EventFilter::EVFILT_PROC, flags, FilterFlag::NOTE_EXIT, 0, 0);
    let mut ended = [watch];
    // One that has ended already is refused, which says the same.
    if let Ok(queue) = Kqueue::new() {
        while queue.kevent(&[watch], &mut ended, None) == Err(nix::errno::Errno::EINTR) {}
    }
}
