//! Runs the program nft, for a bounded time.
//!
//! The helper of the crate `nftables` is not used: it waits without a limit, deadlocks when nft answers
//! before it has read all its input, and does not return the message with which nft rejects a change.

use std::io::{self, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nftables::schema::Nftables;

use super::super::{FirewallError, TIMEOUT};

/// Paths that are tried besides PATH, which lacks the system's directories for ordinary users.
const ELSEWHERE: [&str; 2] = ["/usr/sbin/nft", "/sbin/nft"];
/// The largest answer that is read, in bytes: much more than any expected answer. The rest is cut off.
const MAX_ANSWER_BYTES: u64 = 16 << 20;
/// The number of lines of an error message that are shown; the rest repeats the transaction.
const SHOWN_LINES: usize = 3;

/// Runs nft with these arguments and returns its answer.
pub(super) fn run(
    arguments: &[&str],
    input: Option<&Nftables<'_>>,
    action: &str,
) -> Result<Vec<u8>, FirewallError> {
    let failed = |error| FirewallError::Run { action: action.to_owned(), error };
    let input = input.map(serde_json::to_vec).transpose().map_err(|error| failed(error.into()))?;
    let child = spawn(arguments).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FirewallError::Missing { action: action.to_owned() },
        _ => failed(error),
    })?;
    let ended = converse(child, input.unwrap_or_default(), TIMEOUT).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => FirewallError::Timeout { action: action.to_owned() },
        _ => failed(error),
    })?;
    if ended.is_success { Ok(ended.answer) } else { Err(refusal(&ended.complaint, action)) }
}

fn spawn(arguments: &[&str]) -> io::Result<Child> {
    let mut result = spawn_program("nft", arguments);
    for program in ELSEWHERE {
        match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                result = spawn_program(program, arguments);
            }
            found => return found,
        }
    }
    result
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

struct Ended {
    is_success: bool,
    answer: Vec<u8>,
    complaint: Vec<u8>,
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
            let is_success = child.wait()?.success();
            Ok(Ended { is_success, answer, complaint })
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
    std::thread::Builder::new().name("weft-nft".to_owned()).spawn(work).map(drop)
}

/// Finds the error that a message of nft means.
fn refusal(complaint: &[u8], action: &str) -> FirewallError {
    let complaint = String::from_utf8_lossy(complaint);
    let lines: Vec<&str> =
        complaint.lines().map(str::trim).filter(|line| !line.is_empty()).take(SHOWN_LINES).collect();
    let (action, message) = (action.to_owned(), lines.join(" / "));
    let says = |text: &str| message.contains(text);
    if says("Operation not permitted") || says("Permission denied") {
        FirewallError::Permission { action }
    } else if says("not supported") || says("Unable to initialize Netlink socket") {
        FirewallError::Kernel { action, message }
    } else {
        FirewallError::Refused { action, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(complaint: &str) -> FirewallError {
        refusal(complaint.as_bytes(), "do it")
    }

    #[test]
    fn a_complaint_says_what_to_do() {
        let denied = of("Error: Could not process rule: Operation not permitted\ntable inet weft-wg0\n");
        assert!(matches!(denied, FirewallError::Permission { .. }), "{denied:?}");
        assert!(denied.to_string().contains("CAP_NET_ADMIN"));
        let old = of("Error: Could not process rule: Operation not supported\n");
        assert!(old.to_string().contains("modprobe -a nf_tables"), "{old}");
        let other = of("\nError: no such\n  table \nc\nd\n");
        assert_eq!(other.to_string(), "cannot do it: nft says: Error: no such / table / c");
    }

    #[test]
    fn a_program_that_is_not_there_names_its_package() {
        let missing = FirewallError::Missing { action: "do it".to_owned() };
        assert!(missing.to_string().contains("install the package nftables"));
        let error = spawn_program("nft-that-is-not-there", &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

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
