//! Why the machine's resolver could not be told.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use weft_config::exit;

use super::Method;

/// Why the machine's resolver could not be told.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// There is no way to systemd-resolved.
    #[error(
        "cannot {action}: {reason}; see that dbus and systemd-resolved run, or choose another way to set DNS \
         (resolvconf, file)"
    )]
    Bus {
        /// What was tried.
        action: String,
        /// What the bus said.
        reason: String,
    },
    /// This user may not do it.
    #[error(
        "systemd-resolved does not let this user {action}: {reason}; run weft as root, or allow the actions \
         org.freedesktop.resolve1.* by a polkit rule"
    )]
    Denied {
        /// What was tried.
        action: String,
        /// What systemd-resolved said.
        reason: String,
    },
    /// systemd-resolved did not want to.
    #[error("systemd-resolved refused to {action}: {reason}; {advice}")]
    Refused {
        /// What was tried.
        action: String,
        /// What it said.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// Interface numbers mean something else there.
    #[error(
        "systemd-resolved serves another network namespace than weft's; choose another way to set DNS (file), or \
         leave DNS out of the configuration"
    )]
    OtherNamespace,
    /// There is no such program.
    #[error(
        "there is no resolvconf program in {searched}; install openresolv, or choose another way to set DNS"
    )]
    NoResolvconf {
        /// The directories.
        searched: String,
    },
    /// A program could not be started.
    #[error("cannot run {}: {error}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A program said no.
    #[error("`{command}` ended with {status}{said}")]
    Program {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it said on stderr, after a colon.
        said: String,
    },
    /// Nothing came back.
    #[error("cannot {action}: there was no answer within {} s", after.as_secs())]
    Timeout {
        /// What was tried.
        action: String,
        /// How long it had.
        after: Duration,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {error}{advice}", path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
        /// What to do, after a semicolon.
        advice: &'static str,
    },
    /// Something else wrote weft's own file.
    #[error("{}: {reason}; remove the file once {} is as it should be", path.display(), resolv_conf.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The file that it is about.
        resolv_conf: PathBuf,
    },
    /// The C library asks its servers for every name.
    #[error(
        "{method} cannot use the DNS servers for {domains} only; use systemd-resolved, or remove the `~` to have \
         them asked for every name"
    )]
    Split {
        /// What would have had to.
        method: Method,
        /// The domains.
        domains: String,
    },
    /// This platform cannot do it yet.
    #[error("weft does not set DNS on this platform yet; leave DNS out of the configuration")]
    Unsupported,
}

impl DnsError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Denied { .. } => exit::Code::Permission,
            Self::File { error, .. } | Self::Spawn { error, .. }
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                exit::Code::Permission
            }
            Self::Split { .. } => exit::Code::Configuration,
            _ => exit::Code::Failure,
        }
    }
}

impl From<DnsError> for exit::Error {
    fn from(error: DnsError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
