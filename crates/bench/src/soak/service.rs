//! The gateway's daemon as a service: restarted with its descriptors, scraped and reloaded.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use weft_config::InterfaceName;
use weft_lab::service_manager::{Doing, Manager};
use weft_lab::{Namespace, Process};
use weft_report::StatusReport;
use weft_report::control_socket::Client;

use super::schedule::Restart;
use crate::implementation;
use crate::interrupt::Interrupt;

const START: Duration = Duration::from_secs(60);
const METRICS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9586);
const SCRAPE: Duration = Duration::from_secs(60);

/// A daemon under a service manager.
pub(super) struct Service {
    process: Process,
    manager: Manager,
    namespace: Namespace,
    weft: PathBuf,
    arguments: Vec<String>,
    file: PathBuf,
    name: InterfaceName,
    /// Short, because the path of a socket is.
    runtime: TempDir,
}

impl Service {
    pub(super) fn start(
        namespace: &Namespace,
        weft: &Path,
        arguments: &[String],
        file: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let runtime = tempfile::tempdir()?;
        let mut manager = Manager::start(runtime.path())
            .context("the service manager does not start (Debian: apt-get install dbus-daemon)")?;
        let process = spawn(&mut manager, namespace, weft, arguments, file)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().parse()?;
        let (weft, file) = (weft.to_owned(), file.to_owned());
        let (namespace, arguments) = (namespace.clone(), arguments.to_vec());
        let service = Self { process, manager, namespace, weft, arguments, file, name, runtime };
        service.wait_until_ready(interrupt)?;
        Ok(service)
    }

    /// Returns the ID of the daemon's process.
    pub(super) fn id(&self) -> u32 {
        self.process.pid().as_raw().cast_unsigned()
    }

    /// Returns an error with the end of its log if the daemon has ended.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.process.is_running(), "the gateway ended:\n{}", self.log());
        Ok(())
    }

    /// Returns what the daemon has logged since it was last started.
    pub(super) fn log(&self) -> String {
        self.process.log()
    }

    /// Restarts the daemon, and waits until it is ready.
    pub(super) fn restart(&mut self, how: Restart, interrupt: &Interrupt) -> Result<()> {
        match how {
            Restart::Orderly => {
                self.manager.set(Doing::Restart);
                self.process.signal(Signal::SIGTERM);
            }
            Restart::Crash => self.process.signal(Signal::SIGKILL),
        }
        interrupt
            .wait_for("the end of the daemon", START, || Ok((!self.process.is_running()).then_some(())))?;
        let status = self.process.wait();
        let is_expected = status.success() || how == Restart::Crash;
        ensure!(is_expected, "the daemon ended with {status}:\n{}", self.log());
        // What ExecStopPost= does.
        self.run(&["down", "--keep-kill-switch"])?;
        self.manager.set(Doing::Nothing);
        self.process = spawn(&mut self.manager, &self.namespace, &self.weft, &self.arguments, &self.file)?;
        self.wait_until_ready(interrupt)?;
        let goes_on = self.log().contains("going on with the interface");
        ensure!(goes_on, "the daemon does not go on with its interface:\n{}", self.log());
        Ok(())
    }

    /// Makes the daemon read its file again.
    pub(super) fn reload(&self) -> Result<()> {
        self.run(&["reload"])
    }

    /// Returns the daemon's status.
    pub(super) fn status(&self) -> Result<StatusReport> {
        let directory = self.runtime.path().join("run");
        Ok(Client::connect_in(&directory, &self.name)?.status()?)
    }

    /// Reads the metrics over HTTP.
    pub(super) fn scrape(&self) -> Result<()> {
        let connect = || TcpStream::connect_timeout(&METRICS.into(), SCRAPE);
        let mut stream = self.namespace.run(connect).context("cannot reach the metrics")?;
        stream.set_read_timeout(Some(SCRAPE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("the metrics do not arrive")?;
        let is_whole = answer.starts_with("HTTP/1.1 200") && answer.trim_end().ends_with("# EOF");
        ensure!(is_whole, "the metrics are not whole: {:?}", answer.lines().next());
        Ok(())
    }

    /// Waits until the interface is up and the first state is stored.
    fn wait_until_ready(&self, interrupt: &Interrupt) -> Result<()> {
        let state = format!("state-{}", self.name);
        interrupt.wait_for("the gateway's interface", START, || {
            self.check()?;
            let is_up = self.log().contains(" is up: port ") && self.status().is_ok();
            Ok((is_up && self.manager.shared.names().contains(&state)).then_some(()))
        })
    }

    /// Runs a command of weft with the configuration file, beside the service.
    fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = self.namespace.command(&self.weft);
        self.manager.environment(&mut command);
        let output = command.args(words).arg(&self.file).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!("weft {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The daemon is killed, and leaves it in a directory that all namespaces share.
        let _ = std::fs::remove_file(implementation::uapi_socket(&self.name));
    }
}

/// Starts the daemon with the descriptors in the store, as ExecStart= does.
fn spawn(
    manager: &mut Manager,
    namespace: &Namespace,
    weft: &Path,
    arguments: &[String],
    file: &Path,
) -> Result<Process> {
    manager.begin_run();
    let mut command: Command = namespace.command("sh");
    // Only a shell can put its own process ID into the environment of what it becomes.
    command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(weft).arg("up").arg(file);
    command.args(["--metrics", &METRICS.to_string()]).args(arguments);
    manager.hand_over(&mut command);
    Ok(Process::start(namespace, command)?)
}

/// Writes the log of a daemon into a file.
pub(super) fn keep_log(service: &Service, path: &Path) -> Result<()> {
    File::create(path)?.write_all(service.log().as_bytes())?;
    Ok(())
}
