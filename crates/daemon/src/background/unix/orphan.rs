//! Ends a start if its command is killed: nothing else would.

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

/// Makes the end of the parent a SIGTERM for this process.
pub(super) fn end_with(parent: Pid) -> Result<(), Errno> {
    set_pdeathsig(Signal::SIGTERM)?;
    // It may have ended before.
    if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH) }
}

/// Lets the parent end.
pub(super) fn stay() -> Result<(), Errno> {
    set_pdeathsig(None)
}
