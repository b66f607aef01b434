//! Runs a program that changes the packet filter, for a bounded time.

use std::io::{self, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::error::FirewallError;
use crate::programs;

/// How long a program may run. A change takes milliseconds, even with ten thousand endpoints, and seconds
/// where other work keeps every core busy. A longer run means that something holds the kernel's lock.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer that is read, in bytes: much more than any expected answer. The rest is cut off.
const MAX_ANSWER_BYTES: u64 = 16 << 20;
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
    pub(super) fn run(
        &self,
        arguments: &[&str],
        input: Vec<u8>,
        action: &str,
    ) -> Result<Ended, FirewallError> {
        let (action, program) = (action.to_owned(), self.name);
        let run = |time| converse(self.spawn(arguments)?, input, time);
        programs::call(program, TIMEOUT, run).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FirewallError::Missing { action, program, advice: self.advice },
            io::ErrorKind::TimedOut => FirewallError::Timeout { action, program },
            _ => FirewallError::Run { action, program, error },
        })
    }

    fn spawn(&self, arguments: &[&str]) -> io::Result<Child> {
        let mut result = spawn_program(self.name, arguments);
        for program in self.elsewhere {
            match result {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    result = spawn_program(program, arguments);
                }
                found => return found,
            }
        }
        result
    }
}

fn spawn_program(program: &str, arguments: &[&str]) -> io::Result<Child> {
    let piped = Stdio::piped;
    // Messages are in English: their words determine the error.
    Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(piped())
        .stdout(piped())
        .stderr(piped())
        .spawn()
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

/// Writes the input and reads the answer at the same time, since nft may answer before it has read all its
/// input.
fn converse(mut child: Child, input: Vec<u8>, patience: Duration) -> io::Result<Ended> {
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(io::Error::other("it has no pipes"));
    };
    let talk = || {
        // The program may have ended without reading all its input; its error message says why.
        spawn_thread(move || drop(stdin.write_all(&input)))?;
        Ok((collect(stdout)?, collect(stderr)?))
    };
    let deadline = Instant::now() + patience;
    let until_closed = |collected: &Receiver<_>| match collected
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its answer was lost")),
    };
    let heard =
        talk().and_then(|(answer, complaint)| Ok((until_closed(&answer)?, until_closed(&complaint)?)));
    match heard {
        Ok((answer, complaint)) => {
            // The program closed its pipes: it is ending.
            let status = child.wait()?;
            let is_silent = !status.success() && complaint.is_empty();
            let complaint =
                if is_silent { format!("nothing, and ended with {status}").into() } else { complaint };
            Ok(Ended { is_success: status.success(), answer, complaint })
        }
        Err(error) => {
            let _ = child.kill();
            // The program may hang in the kernel, where the signal does not reach it.
            let _ = spawn_thread(move || drop(child.wait()));
            Err(error)
        }
    }
}

fn collect(pipe: impl Read + Send + 'static) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    spawn_thread(move || {
        let mut text = Vec::new();
        let result = pipe.take(MAX_ANSWER_BYTES).read_to_end(&mut text);
        let _ = sender.send(result.map(|_| text));
    })?;
    Ok(receiver)
}

fn spawn_thread(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("weft-firewall".to_owned()).spawn(work).map(drop)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    #[test]
    fn a_program_that_answers_before_it_reads_is_heard() {
        // More than a pipe holds, both ways.
        let child = shell("head -c 300000 /dev/zero; cat >/dev/null; echo no >&2; exit 3");
        let ended = converse(child, vec![b' '; 300_000], TIMEOUT).unwrap();
        assert!(!ended.is_success);
        assert_eq!((ended.answer.len(), ended.complaint.as_slice()), (300_000, &b"no\n"[..]));
    }

    #[test]
    fn a_program_that_is_killed_says_so() {
        let ended = converse(shell("kill -9 $$"), Vec::new(), TIMEOUT).unwrap();
        assert_eq!(ended.message(), "nothing, and ended with signal: 9 (SIGKILL)");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let child = shell("exec sleep 600");
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let error = converse(child, Vec::new(), Duration::from_millis(1)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let start = Instant::now();
        while nix::sys::signal::kill(pid, None).is_ok() {
            assert!(start.elapsed() < TIMEOUT, "it is still there");
            std::thread::yield_now();
        }
    }
}
