//! Which process has a name that one program at a time can have: a port, a socket, or a TUN device.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;

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
        /// The name of its program.
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

/// Returns the name of a socket until it listens. Clients ignore names that do not end in `.sock`.
#[cfg(unix)]
pub(crate) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
