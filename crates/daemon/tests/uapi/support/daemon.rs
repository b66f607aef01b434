//! A daemon in the foreground, as a process of its own.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::{Machine, NAME, socket_of, wait_until};

/// Whose daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Weft,
    WireguardGo,
}

/// It is killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    files: TempDir,
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
        let mut daemon = Self::spawn(machine, command);
        if matches!(kind, Kind::WireguardGo) {
            // A wg(8) that asks earlier is refused, and removes the socket for that.
            wait_until("wireguard-go listens", || {
                assert!(daemon.is_running(), "it ended:\n{}", daemon.log());
                daemon.log().contains("UAPI listener started").then_some(())
            });
        }
        daemon.wait_until_ready(machine);
        daemon
    }

    /// Starts this command, whose output is kept.
    pub(crate) fn spawn(machine: &Machine, command: Command) -> Self {
        Self::spawn_with_level(machine, command, "verbose")
    }

    /// The same with this LOG_LEVEL.
    pub(crate) fn spawn_with_level(machine: &Machine, mut command: Command, level: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let log = File::create(files.path().join("log")).unwrap();
        command.env("LOG_LEVEL", level).stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: machine.namespace.start(command).unwrap(), files }
    }

    #[track_caller]
    pub(crate) fn wait_until_ready(&mut self, machine: &Machine) {
        wait_until("the daemon answers", || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended:\n{}", self.log());
            machine.output("wg", &["show", NAME, "listen-port"]).status.success().then_some(())
        });
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_until("the daemon ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- daemon {}\n{}", self.pid(), self.log());
        }
    }
}

/// Who listens on the socket of an interface, if anybody does.
pub(crate) fn daemon_of(machine: &Machine, name: &str) -> Option<Pid> {
    let path = socket_of(name);
    let stream = machine.inside(move || UnixStream::connect(path)).ok()?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).ok()?;
    Some(Pid::from_raw(peer.pid()))
}
