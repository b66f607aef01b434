//! The programs that the measurements need.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Result, bail};

use crate::case::Case;
use crate::implementation::Implementation;

/// A program, and the Debian package that contains it.
type Tool = (&'static str, &'static str);

const IPERF3: Tool = ("iperf3", "iperf3");
const PING: Tool = ("ping", "iputils-ping");
const WG: Tool = ("wg", "wireguard-tools");
/// Without it system calls are not counted; nothing else needs it.
pub(crate) const PERF: Tool = ("perf", "linux-perf");

/// Checks that the needed programs are installed.
///
/// # Errors
/// Names the missing tools and their packages, or the first missing implementation.
pub(crate) fn check<'a>(
    cases: &[Case],
    implementations: impl IntoIterator<Item = &'a Implementation>,
) -> Result<()> {
    let mut needed = Vec::new();
    if cases.iter().any(|case| {
        !matches!(case, Case::Ping | Case::Idle | Case::Connections { .. } | Case::ColdStart { .. })
    }) {
        needed.push(IPERF3);
    }
    if cases.iter().any(|case| matches!(case, Case::Ping | Case::PingLoaded)) {
        needed.push(PING);
    }
    let mut missing_peers = Vec::new();
    for implementation in implementations {
        if let Implementation::Other(command) = implementation {
            needed.push(WG);
            if !is_installed(command.program()) {
                missing_peers.push(command.program());
            }
        }
    }
    needed.dedup();
    let missing: Vec<Tool> = needed.into_iter().filter(|(program, _)| !is_installed(program)).collect();
    if !missing.is_empty() {
        let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
        let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        bail!("not installed: {} (Debian: apt-get install {})", programs.join(", "), packages.join(" "));
    }
    match missing_peers.first() {
        Some(&"wireguard-go") => bail!(
            "wireguard-go is not installed (Debian: apt-get install wireguard-go, though newer ones are faster); \
             another one can be named, as in 'go=/opt/wireguard-go -f {{interface}}'"
        ),
        Some(program) => bail!("there is no program {program}: name one that is installed, or its path"),
        None => Ok(()),
    }
}

/// Reports whether a program of this name can be started.
pub(crate) fn is_installed(program: &str) -> bool {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.contains('/') {
        return is_program(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| is_program(&directory.join(OsStr::new(program))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_path_or_where_they_are_named() {
        assert!(is_installed("sh") && is_installed("/bin/sh"));
        assert!(!is_installed("no-such-program") && !is_installed("/etc/passwd") && !is_installed("/bin"));
    }

    #[test]
    fn a_peer_that_is_missing_is_named() {
        let peer = Implementation::Other("x=/no/such/program {interface}".parse().unwrap());
        let error = check(&[Case::Idle], [&peer]).unwrap_err().to_string();
        assert!(error.contains("/no/such/program") || error.contains("wireguard-tools"), "{error}");
    }
}
