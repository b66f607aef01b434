//! A program that runs in a namespace, and what it has said.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::{Namespace, wait_until};

/// A process whose output is kept in memory. Dropping it kills it; a test that fails shows what it has said.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: File,
}

impl Process {
    /// Starts a command, with nothing to read, so that it ends with its namespace.
    pub fn start(namespace: &Namespace, mut command: Command) -> io::Result<Self> {
        // A file, for which no writer has to wait, as it might for a pipe that nobody empties.
        let log = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC)?);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Self { child: namespace.start(command)?, log })
    }

    /// What it has said so far, on standard output and standard error.
    ///
    /// # Panics
    ///
    /// When the memory that has it cannot be read.
    pub fn log(&self) -> String {
        let read = || {
            let len = usize::try_from(self.log.metadata()?.len()).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len];
            self.log.read_exact_at(&mut bytes, 0)?;
            io::Result::Ok(bytes)
        };
        String::from_utf8_lossy(&read().expect("what is in memory can be read")).into_owned()
    }

    /// Waits until it says this, and gives the whole line.
    ///
    /// # Panics
    ///
    /// When it ends before, or does not say it within [`super::PATIENCE`].
    #[track_caller]
    pub fn wait_for_line(&self, text: &str) -> String {
        wait_until(text, || {
            // What it says last is still looked for after it has ended.
            let is_running = self.is_running();
            let log = self.log();
            let line = log.lines().find(|line| line.contains(text)).map(ToOwned::to_owned);
            assert!(is_running || line.is_some(), "it ended without saying {text:?}, but:\n{log}");
            line
        })
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags) == Ok(WaitStatus::StillAlive)
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it has ended and was waited for.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it is there to be told");
    }

    /// Waits until it ends.
    ///
    /// # Panics
    ///
    /// When it does not within [`super::PATIENCE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the process ends", || self.child.try_wait().expect("a child can be waited for"))
    }

    /// Ends it with SIGTERM, and gives what it has said.
    ///
    /// # Panics
    ///
    /// When it does not end well.
    #[track_caller]
    pub fn stop(mut self) -> String {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert!(status.success(), "{status}:\n{}", self.log());
        self.log()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has been waited for already if these fail.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- process {}\n{}", self.pid(), self.log());
        }
    }
}
