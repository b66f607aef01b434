//! A daemon in the foreground, as a separate process.

use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::process::Command;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;
use weft_lab::{Process, until};

use super::{Machine, NAME, socket_of};

/// Whose daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Weft,
    WireguardGo,
}

/// A [`Process`] that serves an interface.
pub(crate) struct Daemon(Process);

impl Deref for Daemon {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.0
    }
}

impl DerefMut for Daemon {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.0
    }
}

impl Daemon {
    /// `weft -f wg0`, once wg(8) finds it.
    #[track_caller]
    pub(crate) fn start(machine: &Machine) -> Self {
        Self::start_kind(machine, Kind::Weft)
    }

    /// The same of either.
    #[track_caller]
    pub(crate) fn start_kind(machine: &Machine, kind: Kind) -> Self {
        let program = match kind {
            Kind::Weft => "weft",
            Kind::WireguardGo => "wireguard-go",
        };
        let mut command = machine.command(program);
        command.args(["-f", NAME]);
        let daemon = Self::spawn(machine, command);
        if matches!(kind, Kind::WireguardGo) {
            // A wg(8) that asks earlier is refused, and removes the socket for that.
            daemon.wait_for_line("UAPI listener started");
        }
        daemon.wait_until_ready(machine);
        daemon
    }

    /// Starts this command and keeps its output.
    pub(crate) fn spawn(machine: &Machine, command: Command) -> Self {
        Self::spawn_with_level(machine, command, "verbose")
    }

    /// The same with this LOG_LEVEL.
    pub(crate) fn spawn_with_level(machine: &Machine, mut command: Command, level: &str) -> Self {
        command.env("LOG_LEVEL", level);
        Self(Process::start(&machine.namespace, command).unwrap())
    }

    #[track_caller]
    pub(crate) fn wait_until_ready(&self, machine: &Machine) {
        until("the daemon answers", || {
            assert!(self.is_running(), "it ended:\n{}", self.log());
            machine.output("wg", &["show", NAME, "listen-port"]).status.success()
        });
    }
}

/// The process that listens on the socket of an interface, if there is one.
pub(crate) fn daemon_of(machine: &Machine, name: &str) -> Option<Pid> {
    let path = socket_of(name);
    let stream = machine.inside(move || UnixStream::connect(path)).ok()?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).ok()?;
    Some(Pid::from_raw(peer.pid()))
}
