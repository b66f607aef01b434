//! Runs the programs that DNS is set by, with a limit for their time.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{DnsError, Places};
use crate::programs;

/// How long the program may run: it restarts daemons.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two checks whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// The number of bytes of its output that are shown.
const MAX_SAID: usize = 2000;

/// Returns the program in the first directory that has it.
pub(super) fn find(places: &Places, name: &str) -> Option<PathBuf> {
    let executable = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    places.programs.iter().map(|directory| directory.join(name)).find(executable)
}

/// Runs a program with this input. What it writes to its standard error belongs to the failure.
#[cfg(not(target_os = "macos"))]
pub(super) fn run(program: &Path, arguments: &[String], input: &str) -> Result<(), DnsError> {
    let mut command = Command::new(program);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    wait_for(command, program, arguments, input, |child| child.stderr.take()).map(drop)
}

/// Runs a program with this input, and returns what it writes to its standard output.
pub(super) fn output(program: &Path, arguments: &[String], input: &str) -> Result<String, DnsError> {
    let mut command = Command::new(program);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    wait_for(command, program, arguments, input, |child| child.stdout.take())
}

/// Returns the error of a program that failed, with what it said.
pub(super) fn failed(program: &Path, arguments: &[String], status: String, said: &str) -> DnsError {
    let said = if said.trim().is_empty() { String::new() } else { format!(": {}", said.trim()) };
    DnsError::Program { command: line(program, arguments), status, said }
}

fn line(program: &Path, arguments: &[String]) -> String {
    format!("{} {}", program.display(), arguments.join(" ")).trim_end().to_owned()
}

fn wait_for<R: io::Read + AsFd>(
    mut command: Command,
    program: &Path,
    arguments: &[String],
    input: &str,
    take: impl FnOnce(&mut Child) -> Option<R>,
) -> Result<String, DnsError> {
    let spawn = |error| DnsError::Spawn { program: program.to_owned(), error };
    let mut said = Vec::new();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let ended = programs::call(&name, TIMEOUT, |time| {
        let mut child = command.args(arguments).stdin(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // The pipe has room for these few lines. A program that does not read them reports the reason
            // itself.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = take(&mut child);
        wait(&mut child, output, &mut said, time)
    });
    let said = String::from_utf8_lossy(&said).into_owned();
    match ended {
        Ok(status) if status.success() => Ok(said),
        Ok(status) => Err(failed(program, arguments, status.to_string(), &said)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Err(DnsError::Hangs { command: line(program, arguments) })
        }
        Err(error) => Err(spawn(error)),
    }
}

/// Waits for the child's end, but not for daemons that it started and that keep its output open.
fn wait(
    child: &mut Child,
    mut output: Option<impl io::Read + AsFd>,
    said: &mut Vec<u8>,
    time: Duration,
) -> io::Result<ExitStatus> {
    if let Some(output) = &output {
        fcntl(output.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let mut read = |said: &mut Vec<u8>| {
        // Reads what is available: the error is `WouldBlock`, and the data before it is kept.
        if let Some(output) = &mut output {
            let _ = output.take(1 << 20).read_to_end(said);
            said.truncate(MAX_SAID);
        }
    };
    let end = Instant::now() + time;
    loop {
        let status = child.try_wait()?;
        read(said);
        if let Some(status) = status {
            return Ok(status);
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(PAUSE);
    }
}
