//! Runs a program for a bounded time, and ends it with all that it has started.

use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The pause between two looks whether a program has ended that says nothing.
const PAUSE_MS: u8 = 5;
/// The same for one that has closed its pipes: it is ending.
const PAUSE_AT_THE_END_MS: u8 = 1;
/// The largest answer that is kept, in bytes: much more than any expected answer. The rest is cut off.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The number of bytes that are read before the time is looked at.
const AT_ONCE_BYTES: u64 = 1 << 20;

/// How a program ended, and what it wrote.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) answer: Vec<u8>,
    pub(crate) complaint: Vec<u8>,
}

/// Runs a program with this input, and waits for its end, but not for daemons that it started and that keep
/// its pipes open. It is in a process group, which is killed when its time is over.
///
/// # Errors
/// It cannot be started. [`io::ErrorKind::TimedOut`]: it has not ended in time.
pub(crate) fn run(mut command: Command, input: &[u8], time: Duration) -> io::Result<Ended> {
    let end = Instant::now().checked_add(time);
    let piped = Stdio::piped;
    command.process_group(0).stdin(piped()).stdout(piped()).stderr(piped());
    let mut child = command.spawn()?;
    converse(&mut child, input, end).inspect_err(|_| {
        if let Ok(group) = child.id().try_into() {
            let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        // It may hang in the kernel, where the signal does not reach it.
        let reap = move || drop(child.wait());
        let _left = std::thread::Builder::new().name("weft-program".to_owned()).spawn(reap);
    })
}

/// Writes the input and reads what the program writes at the same time: it may write before it has read all.
fn converse(child: &mut Child, mut input: &[u8], end: Option<Instant>) -> io::Result<Ended> {
    let mut stdin = child.stdin.take();
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let pipes =
        [stdin.as_ref().map(AsFd::as_fd), stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
    for pipe in pipes.into_iter().flatten() {
        fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let mut ended = Ended::default();
    loop {
        if let Some(pipe) = &mut stdin {
            match pipe.write(input) {
                Ok(written) => input = &input[written..],
                Err(error) if is_for_now(&error) => {}
                // It does not read all of it, and says why.
                Err(_) => input = &[],
            }
        }
        stdin = stdin.filter(|_| !input.is_empty());
        // All that it has written is in the pipes then.
        let status = child.try_wait()?;
        read(&mut stdout, &mut ended.answer);
        read(&mut stderr, &mut ended.complaint);
        if let Some(status) = status {
            return Ok(Ended { status, ..ended });
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let open = [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
        wait(stdin.as_ref().map(AsFd::as_fd), open)?;
    }
}

/// Waits until the program reads or writes something, for a moment at most.
fn wait(stdin: Option<BorrowedFd<'_>>, outputs: [Option<BorrowedFd<'_>>; 2]) -> io::Result<()> {
    let outputs = outputs.into_iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::POLLIN));
    let mut pipes: Vec<PollFd<'_>> = outputs.collect();
    let pause = if pipes.is_empty() { PAUSE_AT_THE_END_MS } else { PAUSE_MS };
    pipes.extend(stdin.map(|pipe| PollFd::new(pipe, PollFlags::POLLOUT)));
    match poll(&mut pipes, PollTimeout::from(pause)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads what is there, and drops a pipe that was closed.
fn read(pipe: &mut Option<impl Read>, text: &mut Vec<u8>) {
    let Some(open) = pipe else { return };
    // What was read before an error is kept.
    let is_open = match open.take(AT_ONCE_BYTES).read_to_end(text) {
        Ok(read) => read as u64 == AT_ONCE_BYTES,
        Err(error) => is_for_now(&error),
    };
    text.truncate(MAX_ANSWER_BYTES);
    if !is_open {
        *pipe = None;
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str, input: &[u8], time: Duration) -> io::Result<Ended> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, input, time)
    }

    #[test]
    fn a_program_that_answers_before_it_reads_is_heard() {
        // More than a pipe holds, both ways.
        let script = "head -c 300000 /dev/zero; cat >/dev/null; echo no >&2; exit 3";
        let ended = shell(script, &[b' '; 300_000], LONG).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!((ended.answer.len(), ended.complaint.as_slice()), (300_000, &b"no\n"[..]));
    }

    #[test]
    fn a_program_that_reads_nothing_is_heard() {
        assert_eq!(shell("echo no", &[b' '; 300_000], LONG).unwrap().answer, b"no\n");
    }

    #[test]
    fn daemons_that_a_program_has_started_are_not_waited_for() {
        let ended = shell("sleep 600 & echo $!", &[], LONG).unwrap();
        let daemon: i32 = String::from_utf8(ended.answer).unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_all_that_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ids");
        let script = format!(
            "(sleep 600 & sleep 600 & echo $! $$ > {0}.new; mv {0}.new {0}; wait) & wait",
            file.display()
        );
        let mut time = Duration::from_millis(50);
        // Until it had the time to start them.
        let ids = loop {
            assert_eq!(shell(&script, &[], time).unwrap_err().kind(), io::ErrorKind::TimedOut);
            match std::fs::read_to_string(&file) {
                Ok(ids) => break ids,
                Err(_) => time *= 2,
            }
        };
        for id in ids.split_whitespace() {
            let start = Instant::now();
            let is_there = || {
                std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
            };
            while is_there() {
                assert!(start.elapsed() < LONG, "{id} is still there");
                std::thread::yield_now();
            }
        }
    }
}
