//! weft as a separate process.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weft_ipc::runtime_dir::control_socket;
use weft_lab::mounts::separate_sockets;
use weft_lab::{Namespace, Process, here, wait_until};

use super::{Conf, NAME};

/// How a process ended, and what it had said.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

impl Ended {
    /// Waits for it.
    #[track_caller]
    pub(crate) fn of(mut process: Process) -> Self {
        let status = process.wait();
        Self { code: status.code(), stderr: process.log() }
    }
}

/// The command `weft up FILE`.
pub(crate) fn weft_up(namespace: &Namespace, file: &Path) -> Command {
    let mut command = namespace.command(env!("CARGO_BIN_EXE_weft"));
    command.env_remove("RUST_LOG").arg("up").arg(file);
    // Beside the file: both ends have an interface of the same name.
    command.env("WEFT_RUNTIME_DIR", file.parent().unwrap());
    separate_sockets(&mut command);
    command
}

/// A command of weft for the interfaces that have their control sockets in this directory.
pub(crate) fn weft(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(arguments).env_remove("RUST_LOG").env_remove("NO_COLOR").env("WEFT_RUNTIME_DIR", directory);
    command
}

/// A TUN of this build may have fewer queues than the command asks for: then the test is not run.
fn report_queues_that_are_too_many(command: &Command) {
    let mut arguments = command.get_args().skip_while(|argument| *argument != "--tun-threads");
    let queues =
        arguments.nth(1).and_then(|queues| queues.to_str()?.parse::<usize>().ok()).unwrap_or_default();
    if queues > weft_tun::MAX_QUEUES {
        here::not_run(&format!("with {queues} queues: a TUN has {} in this build", weft_tun::MAX_QUEUES));
    }
}

/// Runs a command of weft to its end, in the network and the mount namespace of a process: a reload is
/// refused from another network.
pub(crate) fn weft_beside(process: u32, directory: &Path, arguments: &[&str]) -> Output {
    let command = weft(directory, arguments);
    let mut entered = Command::new("nsenter");
    entered.arg(format!("--net=/proc/{process}/ns/net")).arg(format!("--mount=/proc/{process}/ns/mnt"));
    entered.arg("--").arg(command.get_program());
    entered.args(command.get_args());
    entered.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    entered.output().unwrap()
}

/// A running `weft up`, and the directory with its file and its control socket. Dropping it kills it.
pub(crate) struct Running {
    process: Process,
    directory: TempDir,
}

impl Running {
    /// Starts `weft up` with this configuration and these arguments in a namespace, and waits until it is up
    /// and answers.
    #[track_caller]
    pub(crate) fn up(namespace: &Namespace, conf: &Conf, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = weft_up(namespace, &conf.write(directory.path(), NAME));
        command.args(arguments);
        Self::start(namespace, command, directory)
    }

    /// The same with a command for a file in this directory.
    #[track_caller]
    pub(crate) fn start(namespace: &Namespace, command: Command, directory: TempDir) -> Self {
        report_queues_that_are_too_many(&command);
        let running = Self { process: Process::start(namespace, command).unwrap(), directory };
        running.process.wait_for_line(" is up: port ");
        // A busy daemon may answer late.
        wait_until("the control socket", || UnixStream::connect(running.socket()).ok());
        running
    }

    pub(crate) fn socket(&self) -> PathBuf {
        control_socket(self.directory(), &NAME.parse().unwrap())
    }

    /// Where its file and its socket are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a command of weft for it to its end.
    pub(crate) fn weft(&self, arguments: &[&str]) -> Output {
        weft_beside(self.pid(), self.directory(), arguments)
    }

    /// What `weft status --json` says of the interface, with rates over `sample` seconds.
    #[track_caller]
    pub(crate) fn status(&self, sample: &str) -> Value {
        let output = self.weft(&["status", NAME, "--json", "--sample", sample]);
        assert!(output.status.success(), "{output:?}");
        let mut json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["interfaces"][0].take()
    }

    /// The steps that a reload of `conf` tells.
    #[track_caller]
    pub(crate) fn reload(&self, conf: &Conf, arguments: &[&str]) -> Vec<String> {
        let file = conf.write(self.directory(), NAME);
        let output = self.weft(&[&["reload", "--json", file.to_str().unwrap()], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["steps"].as_array().unwrap().iter().map(|step| step.as_str().unwrap().to_owned()).collect()
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
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

    /// Waits until it ends. Its files are left in the directory.
    #[track_caller]
    pub(crate) fn wait(self) -> (Ended, TempDir) {
        (Ended::of(self.process), self.directory)
    }

    /// Ends it with SIGTERM, and asserts that it ends well.
    #[track_caller]
    pub(crate) fn stop(self) -> (Ended, TempDir) {
        self.signal(Signal::SIGTERM);
        let (ended, directory) = self.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        (ended, directory)
    }
}
