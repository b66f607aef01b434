//! Runs the programs of the system that manage services.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::error::ServiceError;

/// Runs a program to its end, and returns what it printed.
///
/// # Errors
/// When it cannot be started, and when it fails.
pub(super) fn run(program: &Path, arguments: &[&str]) -> Result<String, ServiceError> {
    let output = output(program, arguments)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(program, arguments, &output))
}

/// Runs a program to its end, however it ends.
pub(super) fn output(program: &Path, arguments: &[&str]) -> Result<Output, ServiceError> {
    let command = line(program, arguments);
    let mut program = Command::new(program);
    // A separate process group: Ctrl-C ends neither a step nor its undoing in the middle.
    program.args(arguments).stdin(Stdio::null()).process_group(0);
    program.output().map_err(|error| ServiceError::Spawn { command, error })
}

/// Returns the error of a program that failed, with what it said.
pub(super) fn failed(program: &Path, arguments: &[&str], output: &Output) -> ServiceError {
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).trim().to_owned());
    let said = said.iter().filter(|text| !text.is_empty()).map(|text| format!(": {text}")).collect();
    ServiceError::Program { command: line(program, arguments), status: output.status.to_string(), said }
}

fn line(program: &Path, arguments: &[&str]) -> String {
    format!("{} {}", program.display(), arguments.join(" "))
}
