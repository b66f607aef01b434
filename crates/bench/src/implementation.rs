//! The implementations that are measured, and how an interface is brought up with each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use weft_config::InterfaceName;
use weft_lab::{Namespace, Process, link, write_private};
use weft_report::StatusReport;
use weft_report::control_socket::Client;

use self::named::Named;
use crate::interrupt::Interrupt;
use crate::machine::Usage;
use crate::site::{Interface, MTU};

pub(crate) mod named;
mod rootless;

pub(crate) use rootless::{NearEnd, Rootless, TRANSFER_PORT};

/// Timeout for a daemon to be configured with all its peers.
const START: Duration = Duration::from_secs(120);
/// Timeout for a program to clean up after SIGTERM.
const LEAVE: Duration = Duration::from_secs(2);
/// Number of output lines that an error shows.
const SHOWN_LINES: usize = 8;

/// Returns the path of the weft built together with this program.
pub(crate) fn weft_beside_this() -> std::io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("weft"))
}

/// An implementation and its name in tables.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) implementation: Implementation,
}

impl Side {
    pub(crate) fn new(name: &str, implementation: Implementation) -> Self {
        Self { name: name.to_owned(), implementation }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.implementation.kind()
    }
}

/// Returns an error if two sides have the same name, by which their figures would be mixed.
pub(crate) fn check(sides: &[Side]) -> Result<()> {
    let mut seen = BTreeSet::new();
    sides.iter().try_for_each(|Side { name, .. }| {
        ensure!(seen.insert(name), "{name} occurs twice: give each a different name");
        Ok(())
    })
}

/// An implementation under test.
#[derive(Clone, Debug)]
pub(crate) enum Implementation {
    /// A weft: the program, and the arguments of `weft up` beyond the file.
    Weft { path: PathBuf, arguments: Vec<String> },
    /// A program that makes an interface which wg(8) configures.
    Other(Named),
    /// A near end without root; the far end is the gateway of all of them, a weft.
    Rootless(Rootless),
    /// The bare link, without a tunnel.
    Bare,
}

/// The kind of implementation that figures belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Weft,
    Other,
    Bare,
}

impl Implementation {
    /// Creates a weft from the command line.
    ///
    /// # Errors
    /// When there is no such program.
    pub(crate) fn weft(words: &[String]) -> Result<Self> {
        let path = words.first().filter(|word| !word.starts_with('-'));
        let arguments = words[usize::from(path.is_some())..].to_vec();
        let path = path.map_or_else(weft_beside_this, |path| Ok(path.into()))?;
        ensure!(path.is_file(), "there is no weft at {}: build it, or name one with --weft", path.display());
        Ok(Self::Weft { path, arguments })
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Weft { .. } | Self::Rootless(_) => Kind::Weft,
            Self::Other(_) => Kind::Other,
            Self::Bare => Kind::Bare,
        }
    }

    /// Returns the implementation of the far end.
    pub(crate) fn of_far_end(&self) -> Self {
        match self {
            Self::Rootless(Rootless { weft, .. }) => Self::Weft { path: weft.clone(), arguments: Vec::new() },
            same => same.clone(),
        }
    }

    /// Reports whether the near end forwards ports of its loopback interface into the tunnel.
    pub(crate) fn forwards_ports(&self) -> bool {
        matches!(self, Self::Rootless(Rootless { end, .. }) if *end != NearEnd::Exec)
    }

    /// Starts the program in the namespace, with its files in a new directory of `files`, and waits until the
    /// interface is configured.
    ///
    /// # Errors
    /// Also for the bare link, which has no interface.
    pub(crate) fn start(
        &self,
        namespace: &Namespace,
        interface: &Interface,
        files: &Path,
        interrupt: &Interrupt,
    ) -> Result<Daemon> {
        let name = interface.name.as_str();
        let directory = files.join(name);
        std::fs::create_dir_all(&directory)?;
        match self {
            Self::Weft { path, arguments } => {
                let file = directory.join(format!("{name}.conf"));
                write_private(&file, &interface.file())?;
                let words = [&path.to_string_lossy(), "up", &file.to_string_lossy()].map(str::to_owned);
                let words: Vec<String> = words.into_iter().chain(arguments.iter().cloned()).collect();
                let daemon = Daemon::start(namespace, &words, &directory, &interface.name)?;
                daemon.wait_until(interrupt, "weft's interface", || daemon.says(" is up: port "))?;
                Ok(daemon)
            }
            Self::Other(command) => {
                let daemon =
                    Daemon::start(namespace, &command.for_interface(name), &directory, &interface.name)?;
                daemon.wait_until(interrupt, "the daemon's answer to wg", || {
                    wg(&["show", name, "listen-port"]).is_ok()
                })?;
                let file = directory.join("wg.conf");
                write_private(&file, &interface.text())?;
                wg(&["setconf", name, &file.to_string_lossy()])?;
                link::set_mtu(namespace, name, MTU.into())?;
                link::set_up(namespace, name)?;
                link::add_address(namespace, name, interface.address.into())?;
                Ok(daemon)
            }
            Self::Rootless(rootless) => rootless.start(namespace, interface, &directory, interrupt),
            Self::Bare => bail!("the bare link has no daemon"),
        }
    }
}

/// Starts a program with a runtime directory for its control socket.
pub(crate) fn start(namespace: &Namespace, words: &[String], runtime: &Path) -> Result<Process> {
    let (program, arguments) = words.split_first().context("there is no program to start")?;
    let mut command = namespace.command(program);
    command.args(arguments).env(weft_ipc::runtime_dir::VARIABLE, runtime);
    Process::start(namespace, command).with_context(|| format!("cannot start {program}: is it installed?"))
}

/// Returns an error with its last lines of output if a process has ended.
pub(crate) fn check_runs(process: &Process) -> Result<()> {
    if !process.is_running() {
        let output = process.log();
        let lines: Vec<_> = output.lines().collect();
        bail!(
            "a program ended; it printed:\n{}",
            lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
        );
    }
    Ok(())
}

/// A running daemon. Dropping it sends SIGTERM, and kills it if it does not end in time.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Process,
    pub(crate) interface: InterfaceName,
    runtime: PathBuf,
    /// A process in the namespace that the daemon made.
    pub(crate) inside: Option<u32>,
    /// The process that moves the packets, if it is another one.
    tunnel: Option<u32>,
}

impl Daemon {
    fn start(
        namespace: &Namespace,
        words: &[String],
        directory: &Path,
        interface: &InterfaceName,
    ) -> Result<Self> {
        let runtime = directory.join("run");
        let process = start(namespace, words, &runtime)?;
        Ok(Self { process, interface: interface.clone(), runtime, inside: None, tunnel: None })
    }

    /// Waits until `condition` holds; an error when the daemon ends before.
    fn wait_until(&self, interrupt: &Interrupt, what: &str, condition: impl Fn() -> bool) -> Result<()> {
        interrupt.wait_for(what, START, || {
            self.check()?;
            Ok(condition().then_some(()))
        })
    }

    fn says(&self, text: &str) -> bool {
        self.process.log().contains(text)
    }

    /// Returns an error if the daemon has ended.
    pub(crate) fn check(&self) -> Result<()> {
        check_runs(&self.process)
    }

    pub(crate) fn status(&self) -> Option<StatusReport> {
        Client::connect_in(&self.runtime, &self.interface).ok()?.status().ok()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.pid().as_raw().cast_unsigned()
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let usage = Usage::of(self.id())?;
        self.tunnel.map_or(Ok(usage), |process| Ok(usage.and(Usage::of(process)?)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let told = Instant::now();
        self.process.signal(Signal::SIGTERM);
        while self.process.is_running() && told.elapsed() < LEAVE {
            std::thread::sleep(Duration::from_millis(5));
        }
        // One that had to be killed leaves it behind.
        let _ = std::fs::remove_file(uapi_socket(&self.interface));
    }
}

/// Returns the path of the socket where a daemon listens for wg(8). All namespaces share it.
pub(crate) fn uapi_socket(interface: &InterfaceName) -> PathBuf {
    PathBuf::from(format!("/var/run/wireguard/{interface}.sock"))
}

fn wg(arguments: &[&str]) -> Result<()> {
    let output = Command::new("wg").args(arguments).output().context("cannot start wg")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "wg {} failed: {}", arguments.join(" "), error.trim());
    Ok(())
}
