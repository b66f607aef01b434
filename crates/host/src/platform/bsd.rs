//! Ends another process on macOS and FreeBSD, which have no handle of a process: a kqueue tells whether it
//! has ended.

use std::io;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Process;

#[cfg(target_os = "freebsd")]
#[path = "bsd/freebsd.rs"]
mod system;
#[cfg(target_os = "macos")]
#[path = "bsd/macos.rs"]
mod system;

/// What the system knows of a process.
struct Known {
    /// Its start time, in microseconds.
    started: u64,
    /// Its effective user.
    user: u32,
}

/// Returns the start time of a process, in microseconds.
pub(super) fn started(id: u32) -> Option<u64> {
    Some(system::known(id.try_into().ok()?)?.started)
}

/// Returns the effective user of a process.
pub(super) fn user(id: u32) -> Option<u32> {
    Some(system::known(id.try_into().ok()?)?.user)
}

/// Always false: the device of a process is not removed from outside.
pub(crate) fn has_lost_its_device(_: u32) -> bool {
    false
}

/// Tells a process to end by SIGTERM, and waits for its end. Returns whether it has ended; true if it had
/// ended before.
pub(crate) fn end(process: Process, patience: Duration) -> io::Result<bool> {
    let id: i32 = process.id.try_into().map_err(io::Error::other)?;
    let queue = Kqueue::new()?;
    let end = KEvent::new(
        id.try_into().map_err(io::Error::other)?,
        EventFilter::EVFILT_PROC,
        EvFlags::EV_ADD,
        FilterFlag::NOTE_EXIT,
        0,
        0,
    );
    // The event is of the process that has the id now. If that is the process, it cannot be replaced without
    // the event, which is looked for right before the signal.
    match queue.kevent(&[end], &mut [], None) {
        Err(Errno::ESRCH) => return Ok(true),
        added => added?,
    };
    if started(process.id) != Some(process.started) || has_ended(&queue, Duration::ZERO)? {
        return Ok(true);
    }
    match kill(Pid::from_raw(id), Signal::SIGTERM) {
        Err(Errno::ESRCH) => return Ok(true),
        sent => sent?,
    }
    has_ended(&queue, patience)
}

/// Waits for the event. Returns whether it came.
fn has_ended(queue: &Kqueue, patience: Duration) -> io::Result<bool> {
    let end = Instant::now() + patience;
    let mut events = [KEvent::new(0, EventFilter::EVFILT_PROC, EvFlags::empty(), FilterFlag::empty(), 0, 0)];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = libc::timespec {
            tv_sec: left.as_secs().try_into().map_err(io::Error::other)?,
            tv_nsec: left.subsec_nanos().into(),
        };
        match queue.kevent(&[], &mut events, Some(timeout)) {
            Err(Errno::EINTR) => {}
            found => return Ok(found? > 0),
        }
    }
}
