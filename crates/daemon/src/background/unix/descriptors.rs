//! Descriptors that the caller had open, such as the end of a pipe or a lock of flock(1).

use std::fs;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{SFlag, fstat};

/// The first number behind standard error.
const FIRST: RawFd = 3;

/// Returns the descriptors that this process did not open, beside the standard ones and those that the
/// service manager hands over: its own are all closed by exec(3).
pub(super) fn inherited() -> Vec<RawFd> {
    let handed_over = std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse::<RawFd>().ok());
    let first = FIRST.saturating_add(handed_over.unwrap_or(0).max(0));
    let entries = fs::read_dir("/dev/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|number| *number >= first && is_inherited(*number)).collect()
}

fn is_inherited(number: RawFd) -> bool {
    // SAFETY: the borrowed descriptor is only used to ask for its flags, and is not kept.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl(descriptor, FcntlArg::F_GETFD);
    flags.is_ok_and(|flags| !FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC))
}

/// Closes descriptors that [`inherited`] has returned.
pub(super) fn close(inherited: &[RawFd]) {
    for number in inherited {
        // SAFETY: no code of this process owns what it has not opened, and none has closed it, so the number
        // is still that of the descriptor that was inherited.
        drop(unsafe { OwnedFd::from_raw_fd(*number) });
    }
}

/// Reports whether a descriptor is one of a file on a disk.
pub(super) fn is_file(descriptor: BorrowedFd<'_>) -> bool {
    fstat(descriptor)
        .is_ok_and(|state| SFlag::from_bits_truncate(state.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG)
}
