//! Why the DNS settings could not be passed to the machine's resolver.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use weft_config::{as_root, exit};

use super::Method;

/// What a unit without root can do.
const AS_CLIENT: &str = "start the unit weft-client@NAME in place of weft@NAME";

/// Why the DNS settings could not be passed to the machine's resolver.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// systemd-resolved cannot be reached.
    #[error(
        "cannot {action}: {reason}; see that dbus and systemd-resolved run, or choose another way to set DNS \
         (resolvconf, file)"
    )]
    Bus {
        /// The action that failed.
        action: String,
        /// The error of the bus.
        reason: String,
    },
    /// This user does not have the permission.
    #[error(
        "systemd-resolved does not let this user {action}: {reason}; {}, or allow the actions \
         org.freedesktop.resolve1.* by a polkit rule",
        as_root("run weft as root", AS_CLIENT)
    )]
    Denied {
        /// The action that failed.
        action: String,
        /// The error of systemd-resolved.
        reason: String,
    },
    /// systemd-resolved rejected the request.
    #[error("systemd-resolved refused to {action}: {reason}; {advice}")]
    Refused {
        /// The action that failed.
        action: String,
        reason: String,
        advice: &'static str,
    },
    /// systemd-resolved runs in another network namespace, where interface indices have another meaning.
    #[error(
        "systemd-resolved serves another network namespace than weft's; choose another way to set DNS (file), or \
         leave DNS out of the configuration"
    )]
    OtherNamespace,
    /// The network namespace has no /etc/resolv.conf that is not another one's too.
    #[error(
        "/etc/resolv.conf is that of another network namespace too (process {process}), where the DNS servers of this \
         tunnel cannot be reached; give this one a file (`mkdir -p /etc/netns/NAME; touch /etc/netns/NAME/resolv.conf`) \
         and start weft by `ip netns exec NAME`, or in a unit with BindPaths=, or leave DNS out of the configuration"
    )]
    OtherNamespacesFile {
        /// A process there.
        process: u32,
    },
    /// There is no program resolvconf.
    #[error(
        "there is no resolvconf program in {searched}; install openresolv, or choose another way to set DNS"
    )]
    NoResolvconf {
        /// The directories that were searched, separated by colons.
        searched: String,
    },
    /// There is no program scutil.
    #[error("there is no scutil program in {searched}; it belongs to macOS: see PATH")]
    NoScutil {
        /// The directories that were searched, separated by colons.
        searched: String,
    },
    /// Another program, or the administrator, has given a domain its own servers.
    #[error(
        "{} exists and is not weft's, so that the DNS servers of the tunnel cannot have this domain; remove the \
         file, or the domain from DNS", path.display()
    )]
    ResolverExists {
        /// The path of the file.
        path: PathBuf,
    },
    /// The registry of Windows could not be read or changed.
    #[error("cannot {action}: {error}{advice}")]
    Registry {
        /// The action that failed, with its key.
        action: String,
        /// The error of the system.
        error: io::Error,
        /// The advice, after a semicolon; may be empty.
        advice: &'static str,
    },
    /// The registry of Windows does not know the adapter.
    #[error(
        "the registry has no settings of {interface}, whose adapter has the GUID {guid}; see that the adapter is there \
         (`Get-NetAdapter {interface}`) and has IPv4 or IPv6"
    )]
    NoAdapter {
        /// The name of the interface.
        interface: String,
        /// The GUID of its adapter.
        guid: String,
    },
    /// Another program, or the administrator, has a rule for the servers of a domain.
    #[error(
        "the NRPT rule {rule} is for {name} and not this interface's, so that the DNS servers of the tunnel cannot have \
         this domain; remove the rule (`Remove-DnsClientNrptRule -Name '{rule}'`), or the domain from DNS"
    )]
    RuleExists {
        /// The name of the rule, a GUID.
        rule: String,
        name: String,
    },
    /// A program could not be started.
    #[error("cannot run {}: {error}", program.display())]
    Spawn {
        /// The path of the program.
        program: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// A program ended with a failure.
    #[error(
        "`{command}` ended with {status}{said}; run it to see why, or leave DNS out of the configuration"
    )]
    Program {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// Its output on stderr, after a colon; empty if there was none.
        said: String,
    },
    /// A program did not end in time.
    #[error("`{command}` did not end in time; run it by hand to see what it waits for")]
    Hangs {
        /// The program and its arguments.
        command: String,
    },
    /// There was no answer in time.
    #[error("cannot {action}: there was no answer within {} s", after.as_secs())]
    Timeout {
        /// The action that failed.
        action: String,
        /// How long the answer was waited for.
        after: Duration,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {error}{advice}", path.display())]
    File {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
        /// The advice, after a semicolon; may be empty.
        advice: &'static str,
    },
    /// What the file said before the tunnel is lost.
    #[error(
        "cannot restore {}: {why}; it names {servers} now: write the DNS servers of this machine to it",
        path.display()
    )]
    Lost {
        /// The path of the file.
        path: PathBuf,
        /// The servers that stay, separated by commas.
        servers: String,
        /// Where that was.
        why: &'static str,
    },
    /// weft's state file has invalid content.
    #[error("{}: {reason}; remove the file once /etc/resolv.conf is as it should be", path.display())]
    State {
        /// The path of the file.
        path: PathBuf,
        /// The error in its content.
        reason: String,
    },
    /// The method cannot do split DNS: the C library asks its servers for every name.
    #[error(
        "{method} cannot use the DNS servers for {domains} only; use systemd-resolved, or remove the `~` to have \
         them asked for every name"
    )]
    Split {
        method: Method,
        /// The routing domains.
        domains: String,
    },
    /// This platform cannot do it yet.
    #[error("weft does not set DNS on this platform yet; leave DNS out of the configuration")]
    Unsupported,
}

impl DnsError {
    /// Returns the exit code for this error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Denied { .. } => exit::Code::Permission,
            Self::File { error, .. } | Self::Spawn { error, .. } | Self::Registry { error, .. }
                if error.kind() == io::ErrorKind::PermissionDenied =>
            {
                exit::Code::Permission
            }
            Self::Split { .. }
            | Self::ResolverExists { .. }
            | Self::RuleExists { .. }
            | Self::OtherNamespacesFile { .. } => exit::Code::Configuration,
            _ => exit::Code::Failure,
        }
    }
}

impl From<DnsError> for exit::Error {
    fn from(error: DnsError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
