//! No signal tells a process that its parent was killed.

use nix::errno::Errno;
use nix::unistd::Pid;

#[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
pub(super) fn end_with(_: Pid) -> Result<(), Errno> {
    Ok(())
}

#[allow(clippy::unnecessary_wraps, reason = "other systems can fail")]
pub(super) fn stay() -> Result<(), Errno> {
    Ok(())
}
