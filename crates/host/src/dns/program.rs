//! Runs the programs that DNS is set by, with a limit for their time.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{DnsError, Places};
use crate::programs::{self, Ended};

/// How long the program may run: it restarts daemons.
#[cfg(not(target_os = "macos"))]
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may run if it is only asked for something.
const TIMEOUT_OF_A_QUESTION: Duration = Duration::from_secs(5);
/// The number of characters of its output that are shown.
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
    wait_for(program, arguments, input, TIMEOUT, |ended| &ended.complaint).map(drop)
}

/// Runs a program with this input, and returns what it writes to its standard output.
pub(super) fn output(program: &Path, arguments: &[String], input: &str) -> Result<String, DnsError> {
    wait_for(program, arguments, input, TIMEOUT_OF_A_QUESTION, |ended| &ended.answer)
}

/// Returns the error of a program that failed, with what it said.
pub(super) fn failed(program: &Path, arguments: &[String], status: String, said: &str) -> DnsError {
    let said: String = said.trim().chars().take(MAX_SAID).collect();
    let said = if said.is_empty() { said } else { format!(": {said}") };
    DnsError::Program { command: line(program, arguments), status, said }
}

fn line(program: &Path, arguments: &[String]) -> String {
    format!("{} {}", program.display(), arguments.join(" ")).trim_end().to_owned()
}

fn wait_for(
    program: &Path,
    arguments: &[String],
    input: &str,
    usual: Duration,
    said: impl FnOnce(&Ended) -> &[u8],
) -> Result<String, DnsError> {
    let ended = programs::call(&program.to_string_lossy(), usual, |time| {
        let mut command = Command::new(program);
        command.args(arguments);
        programs::run(command, input.as_bytes(), time)
    });
    let ended = ended.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => DnsError::Hangs { command: line(program, arguments) },
        _ => DnsError::Spawn { program: program.to_owned(), error },
    })?;
    let said = String::from_utf8_lossy(said(&ended)).into_owned();
    if ended.status.success() {
        Ok(said)
    } else {
        Err(failed(program, arguments, ended.status.to_string(), &said))
    }
}
