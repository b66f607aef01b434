//! Ends another process by its pidfd, so that no other process with the same id is hit.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::Process;

/// Returns the start time of a process, in clock ticks since boot (proc_pid_stat(5), field 22).
pub(super) fn started(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The second field is a name in parentheses, and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the effective user of a process (proc_pid_status(5), the second number of `Uid`).
pub(super) fn user(id: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Reports whether a process has queues of a TUN device, and the device was removed: a daemon ends then, and
/// may not have noticed yet. False where the system does not tell.
pub(crate) fn has_lost_its_device(id: u32) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{id}/fdinfo")) else { return false };
    let descriptors = descriptors.flatten().filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    // The name of the device, in what the kernel says of a queue; nothing after its removal.
    let mut devices = descriptors.filter_map(|about| {
        about.lines().find_map(|line| Some(line.strip_prefix("iff:")?.trim().to_owned()))
    });
    let Some(first) = devices.next() else { return false };
    first.is_empty() && devices.all(|name| name.is_empty())
}

/// Tells a process to end by SIGTERM, and waits for its end. Returns whether it has ended; true if it had
/// ended before.
pub(crate) fn end(process: Process, patience: Duration) -> io::Result<bool> {
    let Some(handle) = open(process.id)? else { return Ok(true) };
    // The handle refers to the process that has the id now.
    if started(process.id) != Some(process.started) {
        return Ok(true);
    }
    // SAFETY: the call takes the descriptor, a signal's number, and no further information.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            handle.as_raw_fd(),
            libc::SIGTERM,
            std::ptr::null::<()>(),
            0,
        )
    };
    if sent < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(true) } else { Err(error) };
    }
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(handle.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, timeout) {
            Err(nix::errno::Errno::EINTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

/// Opens a descriptor of the process, which becomes readable when the process ends; `None` if there is no
/// such process.
fn open(id: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: the call takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(None) } else { Err(error) };
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_acts_for_its_user() {
        assert_eq!(user(std::process::id()), Some(nix::unistd::geteuid().as_raw()));
        assert_eq!(user(u32::MAX), None);
    }

    #[test]
    fn a_process_is_ended_and_a_stranger_of_its_number_is_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process { id: child.id(), started: started(child.id()).unwrap() };
        let stranger = Process { started: process.started + 1, ..process };
        assert!(end(stranger, Duration::ZERO).unwrap());
        assert!(child.try_wait().unwrap().is_none(), "it was left alone");
        assert!(end(process, Duration::from_secs(30)).unwrap());
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
        assert!(end(process, Duration::ZERO).unwrap(), "gone already");
    }
}
