//! Runs a program that changes the packet filter, for a bounded time.

use std::io;
use std::process::Command;
use std::time::Duration;

use super::error::FirewallError;
use crate::programs;

/// How long a program may run. A change takes milliseconds, even with ten thousand endpoints, and seconds
/// where other work keeps every core busy. A longer run means that something holds the kernel's lock.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The number of lines of an error message that are shown; the rest repeats the input.
const SHOWN_LINES: usize = 3;
/// The number of characters of a line that are shown: one may be a set of ten thousand endpoints.
const SHOWN_CHARACTERS: usize = 200;

/// A program of the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// Paths that are tried besides PATH, which lacks the system's directories for ordinary users.
    pub(super) elsewhere: [&'static str; 2],
    /// What to do if it is not there.
    pub(super) advice: &'static str,
}

impl Program {
    /// Runs it with these arguments, and waits for its end.
    pub(super) fn run(&self, arguments: &[&str], input: &[u8], action: &str) -> Result<Ended, FirewallError> {
        let (action, program) = (action.to_owned(), self.name);
        let run = |time| self.converse(arguments, input, time);
        let ended = programs::call(program, TIMEOUT, run).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FirewallError::Missing { action, program, advice: self.advice },
            io::ErrorKind::TimedOut => FirewallError::Timeout { action, program },
            _ => FirewallError::Run { action, program, error },
        })?;
        let (status, answer, mut complaint) = (ended.status, ended.answer, ended.complaint);
        if !status.success() && complaint.is_empty() {
            complaint = format!("nothing, and ended with {status}").into();
        }
        Ok(Ended { is_success: status.success(), answer, complaint })
    }

    fn converse(&self, arguments: &[&str], input: &[u8], time: Duration) -> io::Result<programs::Ended> {
        let run = |program: &str| {
            let mut command = Command::new(program);
            // Messages are in English: their words determine the error.
            command.args(arguments).env("LC_ALL", "C");
            programs::run(command, input, time)
        };
        let is_missing = |result: &io::Result<_>| {
            result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        self.elsewhere.into_iter().fold(
            run(self.name),
            |found, path| {
                if is_missing(&found) { run(path) } else { found }
            },
        )
    }
}

/// How a program ended, and what it wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    pub(super) is_success: bool,
    pub(super) answer: Vec<u8>,
    pub(super) complaint: Vec<u8>,
}

impl Ended {
    /// Returns its error message in one line.
    pub(super) fn message(&self) -> String {
        let complaint = String::from_utf8_lossy(&self.complaint);
        // nft marks the place of an error with `^` below the line.
        let says = |line: &&str| line.contains(|character| character != '^' && character != '~');
        let lines = complaint.lines().map(str::trim).filter(says);
        let shorten = |line: &str| line.chars().take(SHOWN_CHARACTERS).collect::<String>();
        lines.take(SHOWN_LINES).map(shorten).collect::<Vec<_>>().join(" / ")
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_killed_says_so() {
        let shell = Program { name: "sh", elsewhere: [""; 2], advice: "" };
        let ended = shell.run(&["-c", "kill -9 $$"], &[], "do it").unwrap();
        assert_eq!(ended.message(), "nothing, and ended with signal: 9 (SIGKILL)");
    }
}
