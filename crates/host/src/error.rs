//! Why the system could not be brought into the wanted state.

use std::io;
use std::path::PathBuf;

use weft_config::exit;

use crate::routes::RouteError;
use crate::runtime_dir::UntrustedError;

/// Why a step, or what is around the steps, failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Addresses, routes, rules or the link.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// A command of the configuration did not end well.
    #[error("{place}: the command `{command}` {outcome}")]
    Hook {
        /// File, line and key.
        place: String,
        /// The command, without what looks like a key.
        command: String,
        /// How it ended, and what to do.
        outcome: String,
    },
    /// Name servers or the packet filter.
    #[error("{0}")]
    Outside(#[source] Box<exit::Error>),
    /// A value below /proc/sys.
    #[error("cannot set the sysctl {name} to {value}: {error}; set it by hand")]
    Sysctl {
        /// Its name.
        name: String,
        /// The value.
        value: String,
        /// Why not.
        error: io::Error,
    },
    /// Another daemon has the interface.
    #[error(
        "interface {interface} is up already (weft runs as process {pid}); take it down with `weft down {interface}`"
    )]
    Running {
        /// The interface.
        interface: String,
        /// The process.
        pid: u32,
    },
    /// There is nothing to take down.
    #[error("interface {interface} is not up by weft: no daemon runs it, and {} does not exist; check the name", file.display())]
    NotUp {
        /// The interface.
        interface: String,
        /// Where it would be recorded.
        file: PathBuf,
    },
    /// The daemon does not end.
    #[error(
        "weft (process {pid}) was told to end and has not after {seconds} s; see what it waits for, or kill it and try again"
    )]
    NotEnding {
        /// The process.
        pid: u32,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The daemon cannot be told to end.
    #[error("cannot end weft (process {pid}): {error}; run this as root, or as the user whom it runs as")]
    Signal {
        /// The process.
        pid: u32,
        /// Why not.
        error: io::Error,
    },
    /// The record of what is done cannot be read or written.
    #[error("cannot {action} {}: {error}; {advice}", file.display())]
    State {
        /// What was tried: `write`, `read`, `lock`.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// Why not.
        error: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// A file of the interface is not one that weft made.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
}

impl HostError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Routes(error) => error.exit_code(),
            Self::Outside(error) => error.code(),
            Self::Sysctl { error, .. } | Self::Signal { error, .. } | Self::State { error, .. }
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                exit::Code::Permission
            }
            _ => exit::Code::Failure,
        }
    }
}

impl From<HostError> for exit::Error {
    fn from(error: HostError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
