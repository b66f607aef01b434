//! A program that runs in a namespace and ends with its owner, and its output.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use weft_lab::Namespace;

use crate::interrupt::Interrupt;

/// Number of output lines that an error shows.
const SHOWN_LINES: usize = 8;

/// Timeout for a program to clean up after SIGTERM, for example its socket in a directory that all namespaces
/// share.
const LEAVE: Duration = Duration::from_secs(2);

/// A running program. Dropping it sends SIGTERM, and kills it if it does not end in time.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts a program with its output in a file.
    pub(crate) fn start(namespace: &Namespace, words: &[String], output: PathBuf) -> Result<Self> {
        let (program, arguments) = words.split_first().context("there is no program to start")?;
        let file = File::create(&output).context("cannot make a file for a program's output")?;
        let mut command = namespace.command(program);
        // Both ends have an interface of the same name, so each needs its runtime directory.
        command.env(weft_ipc::runtime_dir::VARIABLE, runtime_directory(&output));
        command.args(arguments).stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
        let child =
            namespace.start(command).with_context(|| format!("cannot start {program}: is it installed?"))?;
        Ok(Self { name: program.clone(), child, output })
    }

    /// Returns its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the runtime directory with the control socket, if it is a weft.
    pub(crate) fn runtime_directory(&self) -> PathBuf {
        runtime_directory(&self.output)
    }

    /// Sends a signal to the program.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(id, signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Returns the output so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until `condition` holds; an error when the program ends before.
    pub(crate) fn wait_until(
        &mut self,
        interrupt: &Interrupt,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        interrupt.wait_for(what, limit, || {
            self.check()?;
            Ok(condition(self).then_some(()))
        })
    }

    /// Returns an error if the program has ended, with its last lines of output.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(anyhow!("{} ended: {status}", self.name).context(self.last_lines())),
            None => Ok(()),
        }
    }

    /// Reports whether the program has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn last_lines(&self) -> String {
        let output = self.output();
        let lines: Vec<_> = output.lines().collect();
        format!("{} printed:\n{}\n", self.name, lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n"))
    }
}

/// Returns the runtime directory of a weft with this output file.
fn runtime_directory(output: &Path) -> PathBuf {
    output.with_extension("run")
}

impl Drop for Process {
    fn drop(&mut self) {
        let told = Instant::now();
        let mut has_ended = self.signal(Signal::SIGTERM).is_err();
        while !has_ended && told.elapsed() < LEAVE {
            has_ended = !matches!(self.child.try_wait(), Ok(None));
            if !has_ended {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
