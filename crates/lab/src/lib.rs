//! Test networks of namespaces inside one process, for `weft demo`, the tests and the benchmarks.
//!
//! Only the [`bus`], and with it the [`service_manager`], needs an installed program, and nothing outlives
//! the process: a namespace is a file descriptor and a few threads, and the kernel removes it with them, even
//! after SIGKILL.

#![cfg(target_os = "linux")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

pub mod bus;
pub mod client;
pub mod content;
pub mod counters;
pub mod cpu;
pub mod cpu_group;
pub mod emulator;
pub mod flood;
pub mod here;
mod inherited;
mod interception;
pub mod link;
pub mod memory_group;
pub mod mounts;
pub mod netns;
pub mod numbered;
pub mod pace;
pub mod packet_socket;
pub mod process;
pub mod refusal;
pub mod routed;
pub mod service_manager;
pub mod terminal;
pub mod traffic;
pub mod transfer;
mod user;
pub mod userns;
mod waiting;

pub use inherited::inherit;
pub use interception::{Interception, Verdict};
pub use netns::Namespace;
pub use process::Process;
pub use refusal::Refusal;
pub use transfer::Transfer;
pub use user::run_as;
pub use userns::{LabError, Privilege, check_tun_device, enter_user_namespace};
pub use waiting::{PATIENCE, until, wait_until, wait_until_ok, within};

/// The environment variable that names the file to which [`not_run`] appends.
pub const NOT_RUN_LOG: &str = "WEFT_NOT_RUN_LOG";

/// Reports on stderr, and in the file that [`NOT_RUN_LOG`] names if it is set, that a test could not run
/// here.
pub fn not_run(test: &str, reason: &str) {
    let line = format!("NOT RUN: {test}: {reason}\n");
    // One write per line, bypassing the test harness's output capture, so that lines of several tests do not
    // mix.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(NOT_RUN_LOG) {
        let _ = append(Path::new(&path), &line);
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// Reports whether this process may create network namespaces; if not, calls [`not_run`] for `test`.
pub fn namespaces_permitted(test: &str) -> bool {
    match Namespace::new("probe") {
        Ok(_) => true,
        Err(error) => {
            not_run(test, &error.to_string());
            false
        }
    }
}

/// Reports whether this process may create network namespaces and TUN devices; if not, calls [`not_run`] for
/// `test`.
pub fn tun_permitted(test: &str) -> bool {
    match check_tun_device() {
        Ok(()) => namespaces_permitted(test),
        Err(error) => {
            not_run(test, &error.to_string());
            false
        }
    }
}

/// Reports whether all these programs are in `PATH`; calls [`not_run`] for `test` with the first one that is
/// missing.
pub fn installed(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    programs.iter().all(|program| {
        let is_there = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
        if !is_there {
            not_run(test, &format!("{program} is not installed"));
        }
        is_there
    })
}

/// Writes a file with mode 0600, for configurations and keys.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_not_run_is_appended_line_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        super::append(&path, "NOT RUN: a: b\n").unwrap();
        super::append(&path, "NOT RUN: c: d\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "NOT RUN: a: b\nNOT RUN: c: d\n");
    }
}
