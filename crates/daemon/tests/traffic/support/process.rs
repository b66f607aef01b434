//! weft as a process of its own.

use std::io;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use weft_lab::{Namespace, Process};

use super::{Conf, NAME};

/// How a process ended, and what it had said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

/// `weft up` as a process of its own. Dropping it kills it.
pub(crate) struct WeftProcess {
    process: Process,
    _directory: Option<TempDir>,
}

impl WeftProcess {
    /// Starts `weft up` with this configuration and these arguments in a namespace, and waits until it is up.
    #[track_caller]
    pub(crate) fn up(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let process = Self::start(namespace, conf, arguments);
        process.wait_until_up();
        process
    }

    /// The same without waiting.
    #[track_caller]
    pub(crate) fn start(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = conf.write(directory.path(), NAME);
        let mut command = Self::command(namespace, &file);
        command.args(arguments);
        let mut process = Self::spawn(namespace, command).unwrap();
        process._directory = Some(directory);
        process
    }

    /// The command `weft up FILE`, to be changed and given to [`Self::spawn`].
    pub(crate) fn command(namespace: &Namespace, file: &Path) -> Command {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
        command.env_remove("RUST_LOG").arg("up").arg(file);
        // Beside the file: both ends have an interface of the same name.
        command.env("WEFT_RUNTIME_DIR", file.parent().unwrap());
        command
    }

    /// Starts a command.
    pub(crate) fn spawn(namespace: &Namespace, command: Command) -> io::Result<Self> {
        Ok(Self { process: Process::start(namespace, command)?, _directory: None })
    }

    /// Waits for the line that says that everything is in place.
    #[track_caller]
    pub(crate) fn wait_until_up(&self) {
        self.wait_for_line("interface is up");
    }

    /// Waits for a line that contains `text`, and gives it.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, text: &str) -> String {
        self.process.wait_for_line(text)
    }

    /// What it has said so far.
    pub(crate) fn stderr(&self) -> String {
        self.process.log()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().as_raw().cast_unsigned()
    }

    /// The most memory that it has had.
    pub(crate) fn peak_memory_kib(&self) -> u64 {
        self.process.peak_memory_kib().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits until it ends.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let status = self.process.wait();
        Ended { code: status.code(), stderr: self.stderr() }
    }

    /// Ends it with SIGTERM, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        let ended = self.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}
