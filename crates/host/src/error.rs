//! Errors of bringing the system around a tunnel into the wanted state.

use std::io;
use std::path::PathBuf;

use weft_config::exit;
use weft_ipc::holder::Holder;
use weft_ipc::runtime_dir::UntrustedError;

use crate::routes::RouteError;

/// Why a step, or the work around the steps, failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Addresses, routes, rules or the link could not be read or changed.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// A command of the configuration failed.
    #[error("{place}: the command `{command}` {outcome}")]
    Hook {
        /// File, line and key.
        place: String,
        /// The command, without what looks like a key.
        command: String,
        /// How it ended, and the advice.
        outcome: String,
    },
    /// Name servers or the packet filter could not be set.
    #[error("{0}")]
    Outside(#[source] Box<exit::Error>),
    /// The name servers from before are not known any more. To undo it again would have no effect.
    #[error("{0}")]
    LostDns(#[source] Box<crate::dns::DnsError>),
    /// A value below /proc/sys could not be set.
    #[error(
        "cannot set the sysctl {name} to {value}: {error}; {}",
        weft_config::as_root(
            "set it by hand",
            "the unit needs the drop-in full-tunnel.conf (ProtectKernelTunables=no and ProcSubset=all)"
        )
    )]
    Sysctl {
        /// Its name, with dots.
        name: String,
        /// The value that was to be set.
        value: String,
        /// The error of the system.
        error: io::Error,
    },
    /// Another daemon runs the interface.
    #[error(
        "interface {interface} is up already (weft runs as process {pid}); take it down with `weft down {interface}`"
    )]
    Running {
        /// The name of the interface.
        interface: String,
        /// Its process id.
        pid: u32,
    },
    /// Another process holds the lock of the interface, and is not the one that has signed it: another
    /// program, or a daemon that cannot be seen.
    #[error(
        "another process{holder} holds {}, so that {interface} may be up already; take it down where it runs, or end \
         that process, and try again", lock.display()
    )]
    Locked {
        /// The name of the interface.
        interface: String,
        /// The path of its lock.
        lock: PathBuf,
        /// The process, if it is seen.
        holder: Holder,
    },
    /// A process in another network namespace runs the interface.
    #[error(
        "interface {interface} runs in another network namespace (weft, process {pid}), which has the directories in \
         common that it is found in by its name, such as /run/weft and /run/wireguard; manage it from there (`nsenter \
         -t {pid} -n weft …`), or give the one here another name"
    )]
    Elsewhere {
        /// The name of the interface.
        interface: String,
        /// Its process id.
        pid: u32,
    },
    /// A process takes the interface down, and has not come to an end in time.
    #[error(
        "interface {interface} is still being taken down after {seconds} s: weft (process {pid}) holds {}; see what it \
         waits for, such as a command of PostDown, or kill it, and try again", lock.display()
    )]
    Ending {
        /// The name of the interface.
        interface: String,
        /// Its process id.
        pid: u32,
        /// The time waited, in seconds.
        seconds: u64,
        /// The path of its lock.
        lock: PathBuf,
    },
    /// No daemon runs the interface, and there is no record of it.
    #[error(
        "{interface} is not running under weft: there is no {}; `weft status` lists the interfaces that are",
        file.display()
    )]
    NotUp {
        /// The name of the interface.
        interface: String,
        /// The path that its record would have.
        file: PathBuf,
    },
    /// No daemon runs the interface, and its record is that of another network namespace.
    #[error(
        "{interface} is not running under weft in this network namespace: {} is what a daemon left in another one, \
         where `weft down {interface}` takes it back",
        file.display()
    )]
    LeftElsewhere {
        /// The name of the interface.
        interface: String,
        /// The path of its record.
        file: PathBuf,
    },
    /// The daemon was told to end, and has not ended in time.
    #[error(
        "weft (process {pid}{state}) was told to end and has not after {seconds} s; see what it waits for, or kill it and \
         try again"
    )]
    NotEnding {
        /// Its process id.
        pid: u32,
        /// Its state, behind a comma; empty if the system does not tell.
        state: String,
        /// The time waited, in seconds.
        seconds: u64,
    },
    /// The daemon is stopped by a signal or a debugger.
    #[error(
        "weft (process {pid}, state {state}) is stopped, and cannot end: let it go on (`kill -CONT {pid}`) or kill it, and \
         try again"
    )]
    Stopped {
        /// Its process id.
        pid: u32,
        /// Its state, as the system names it.
        state: String,
    },
    /// The daemon has no control socket over which it could be told to end, and there is no signal for it.
    #[error(
        "weft (process {pid}) runs {interface} and does not answer on its control pipe: it starts or ends at this \
         moment, or hangs; try again, or end the process (`taskkill /F /PID {pid}`) and run `weft down {interface}` \
         again, which takes back what it has set up"
    )]
    Unreachable {
        /// The name of the interface.
        interface: String,
        /// Its process id.
        pid: u32,
    },
    /// The daemon could not be told to end.
    #[error("cannot end weft (process {pid}): {error}; run this as root, or as its user")]
    Signal {
        /// Its process id.
        pid: u32,
        /// The error of the system.
        error: io::Error,
    },
    /// The record of what was done, or its lock, cannot be used.
    #[error("cannot {action} {}: {error}; {advice}", file.display())]
    State {
        /// The action that failed, as a verb: `create`, `open`, `lock`, `read`, `write`, `remove`.
        action: &'static str,
        file: PathBuf,
        /// The error of the system.
        error: io::Error,
        advice: &'static str,
    },
    /// A file of the interface is not trusted.
    #[error(transparent)]
    Untrusted(#[from] UntrustedError),
}

impl HostError {
    /// Reports whether another process has the interface.
    pub fn is_held(&self) -> bool {
        matches!(
            self,
            Self::Running { .. } | Self::Ending { .. } | Self::Elsewhere { .. } | Self::Locked { .. }
        )
    }

    /// Returns the exit code for this error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Running { .. } => exit::Code::Configuration,
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
