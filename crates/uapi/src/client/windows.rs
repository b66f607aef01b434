//! The named pipe of an interface, below a prefix where only administrators can create pipes.

use std::io;

/// The prefix of the pipes of every UAPI implementation.
pub(super) const DIRECTORY: &str = r"\\.\pipe\ProtectedPrefix\Administrators\WireGuard";

/// Returns the pipe on which an interface's daemon listens.
pub(crate) fn place(interface: &str) -> String {
    format!(r"{DIRECTORY}\{interface}")
}

/// Always false: devices without a daemon cannot be detected here.
pub(super) fn has_device(_: &str) -> bool {
    false
}

/// Returns the names that have a pipe.
pub(super) fn names() -> io::Result<Vec<String>> {
    weft_ipc::pipe::names_below(DIRECTORY)
}

/// Always true: a pipe disappears with its daemon.
pub(super) fn is_alive(_: &str) -> bool {
    true
}
