//! A program that runs in a namespace, and its output.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::{Namespace, wait_until, wait_until_ok};

/// A process with its output kept in memory. Dropping it kills the process; in a failing test that also
/// prints the output.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: File,
}

impl Process {
    /// Starts a command in the namespace, with an empty standard input. The process ends with the namespace
    /// at the latest.
    pub fn start(namespace: &Namespace, mut command: Command) -> io::Result<Self> {
        // A memory file rather than a pipe: writing to it never blocks, even if nothing reads it.
        let log = File::from(memfd_create(c"log", MFdFlags::MFD_CLOEXEC)?);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(Self { child: namespace.start(command)?, log })
    }

    /// Returns the output so far, standard output and standard error together.
    ///
    /// # Panics
    ///
    /// When the memory file cannot be read.
    pub fn log(&self) -> String {
        let read = || {
            let len = usize::try_from(self.log.metadata()?.len()).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len];
            self.log.read_exact_at(&mut bytes, 0)?;
            io::Result::Ok(bytes)
        };
        String::from_utf8_lossy(&read().expect("what is in memory can be read")).into_owned()
    }

    /// Waits until a line of the output contains `text`, and returns that line.
    ///
    /// # Panics
    ///
    /// When the process ends without such a line, or does not print one within [`super::PATIENCE`].
    #[track_caller]
    pub fn wait_for_line(&self, text: &str) -> String {
        wait_until_ok(|| {
            // Checked before the log is read, so that the last output before the end is still searched.
            let is_running = self.is_running();
            let log = self.log();
            let line = log.lines().find(|line| line.contains(text)).map(ToOwned::to_owned);
            assert!(is_running || line.is_some(), "it ended without saying {text:?}, but:\n{log}");
            line.ok_or_else(|| format!("{text:?} in what it said:\n{log}"))
        })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Reports whether the process still runs. Does not reap it.
    pub fn is_running(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags) == Ok(WaitStatus::StillAlive)
    }

    /// Returns the peak of resident memory in KiB (`VmHWM` of proc_pid_status(5)); `None` once the process
    /// has ended.
    pub fn peak_memory_kib(&self) -> Option<u64> {
        self.memory_kib("VmHWM:")
    }

    /// Returns the resident memory that is no file, in KiB (`RssAnon`); `None` once the process has ended.
    pub fn anonymous_memory_kib(&self) -> Option<u64> {
        self.memory_kib("RssAnon:")
    }

    fn memory_kib(&self, figure: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(figure))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    ///
    /// When the process has ended and was reaped.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the process exists until it is reaped");
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    ///
    /// When it does not end within [`super::PATIENCE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait_until("the process ends", || self.child.try_wait().expect("a child can be waited for"))
    }

    /// Ends the process with SIGTERM, and returns its output.
    ///
    /// # Panics
    ///
    /// When its exit status is not success, or it does not end within [`super::PATIENCE`].
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
        // These fail only if the process was reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- process {}\n{}", self.pid(), self.log());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(namespace: &Namespace, script: &str) -> Process {
        let mut command = namespace.command("sh");
        command.args(["-c", script]);
        Process::start(namespace, command).unwrap()
    }

    #[test]
    fn what_a_process_has_said_is_there_after_its_end() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        let mut process = shell(&namespace, "echo one; echo number two >&2; exit 3");
        assert_eq!(process.wait_for_line("two"), "number two");
        assert_eq!(process.wait().code(), Some(3));
        assert!(!process.is_running());
        assert_eq!((process.log().as_str(), process.peak_memory_kib()), ("one\nnumber two\n", None));
    }

    #[test]
    fn a_line_that_a_process_ended_without_is_not_waited_for() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        let process = shell(&namespace, "echo one");
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| process.wait_for_line("two")));
        let said = waited.unwrap_err().downcast::<String>().unwrap();
        assert!(said.contains("ended without saying \"two\"") && said.contains("one"), "{said}");
    }

    #[test]
    fn a_process_is_told_and_ends_with_its_owner() {
        if !crate::here::namespaces_permitted() {
            return;
        }
        let namespace = Namespace::new("t").unwrap();
        let told =
            shell(&namespace, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        told.wait_for_line("ready");
        assert!(told.peak_memory_kib() > Some(0));
        assert_eq!(told.stop(), "ready\nbye\n");
        let dropped = shell(&namespace, "sleep 60");
        let pid = dropped.pid();
        assert!(dropped.is_running());
        drop(dropped);
        assert_eq!(kill(pid, None), Err(nix::errno::Errno::ESRCH));
    }
}
