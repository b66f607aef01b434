//! Programs that are run, and how they ended.

use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::process::{Command, Output, Stdio};

use weft_lab::here;

pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// What it printed; it has to have ended well.
    #[track_caller]
    pub(crate) fn output(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.stdout
    }
}

/// A program in a plain environment.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    for variable in ["RUST_LOG", "NO_COLOR", "WG_COLOR_MODE", "WG_HIDE_KEYS"] {
        command.env_remove(variable);
    }
    command
}

fn run(program: &str, arguments: &[&str]) -> Ended {
    command(program, arguments).output().unwrap().into()
}

pub(crate) const WEFT: &str = env!("CARGO_BIN_EXE_weft");

pub(crate) fn weft(arguments: &[&str]) -> Ended {
    run(WEFT, arguments)
}

pub(crate) fn wg(arguments: &[&str]) -> Ended {
    run("wg", arguments)
}

/// weft with something to read from standard input.
pub(crate) fn weft_reads(arguments: &[&str], input: &str) -> Ended {
    let mut command = command(WEFT, arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

/// Whether `localhost` has an address: a bare system has no /etc/hosts. Where it has none, says so.
pub(crate) fn has_localhost() -> bool {
    let found = ("localhost", 80).to_socket_addrs().is_ok();
    if !found {
        here::not_run("a host name is left out: localhost has no address, as there is no /etc/hosts");
    }
    found
}
