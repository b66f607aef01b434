//! Which process has a name that one program at a time can have: a port, a socket, a TUN device, or a
//! locked file.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
mod linux;

/// A name that one program at a time can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<'a> {
    /// A network device that a TUN gets.
    Device(&'a str),
    /// A UDP port on any address.
    Udp(u16),
    /// A TCP port that is to be listened on.
    Tcp(SocketAddr),
    /// The path of a Unix socket that a program listens on.
    Socket(&'a Path),
    /// The path of a file or directory that is locked (flock).
    Lock(&'a Path),
}

/// What has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nothing, or the system does not tell.
    Unknown,
    /// This process.
    Process {
        /// Its process id.
        id: u32,
        /// The name of its program, escaped.
        program: String,
    },
    /// No process that can be seen from here: it was killed a moment ago, it belongs to another user or
    /// container, or it is the kernel.
    OutOfSight,
}

impl Holder {
    /// Looks for what has the name, in the network namespace of this thread.
    pub fn of(held: Held<'_>) -> Self {
        #[cfg(target_os = "linux")]
        return linux::find(held);
        #[cfg(not(target_os = "linux"))]
        {
            let _ = held;
            Self::Unknown
        }
    }
}

impl fmt::Display for Holder {
    /// Writes ` (process 1234, socat)`, which follows what is held; nothing if no process is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { id, program } => write!(f, " (process {id}, {program})"),
            Self::Unknown | Self::OutOfSight => Ok(()),
        }
    }
}

/// Returns the state of a process, such as `T (stopped)` (proc_pid_status(5)); `None` if the system does not
/// tell.
pub fn state_of(id: u32) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix("State:")?.trim().to_owned()))
}

/// Writes ` (process 1234, state T (stopped))`, which follows the name of a daemon that does not answer;
/// nothing if the system does not tell its process.
pub fn with_state(process: Option<u32>) -> String {
    process.map_or_else(String::new, |id| match state_of(id) {
        Some(state) => format!(" (process {id}, state {state})"),
        None => format!(" (process {id})"),
    })
}

/// Ends the name of a socket until it listens. Clients ignore names that do not end in `.sock`.
const UNFINISHED: &str = ".new";

/// Returns the name of a socket until it listens.
#[cfg(unix)]
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// Returns a name for what takes that of `path` when it is whole. Others cannot know it, to take it first.
pub fn unfinished_at_random(path: &Path) -> PathBuf {
    use std::hash::{BuildHasher as _, RandomState};

    // The seeds of the standard library's hash tables are random.
    let random = RandomState::new().hash_one(());
    let mut name = path.as_os_str().to_owned();
    // Short: the path of a socket has 108 bytes at most.
    name.push(format!(".{:08x}{UNFINISHED}", random >> 32));
    name.into()
}

/// Reports whether a socket that was bound as `bound` may have become that at `path`.
#[cfg(target_os = "linux")]
pub(crate) fn is_unfinished(bound: &Path, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;

    let rest = bound.as_os_str().as_bytes().strip_prefix(path.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.ends_with(UNFINISHED.as_bytes()) && !rest.contains(&b'/'))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
