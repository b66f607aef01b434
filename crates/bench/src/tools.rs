//! The programs that the measurements need.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Result, bail};

use crate::implementation::Implementation;

/// A program, and the Debian package that contains it.
pub(crate) type Tool = (&'static str, &'static str);

pub(crate) const IPERF3: Tool = ("iperf3", "iperf3");
pub(crate) const PING: Tool = ("ping", "iputils-ping");
const WG: Tool = ("wg", "wireguard-tools");
/// What `rootless` needs.
pub(crate) const ROOTLESS: [Tool; 3] = [IPERF3, ("setpriv", "util-linux"), ("curl", "curl")];

/// Checks that the needed programs are installed.
///
/// # Errors
/// Names the missing tools and their packages, or the first missing implementation.
pub(crate) fn check<'a>(
    needed: impl IntoIterator<Item = Tool>,
    implementations: impl IntoIterator<Item = &'a Implementation>,
) -> Result<()> {
    let others = implementations.into_iter().filter_map(|implementation| match implementation {
        Implementation::Other(command) => Some(command.program()),
        _ => None,
    });
    let others: Vec<&str> = others.collect();
    let mut missing: Vec<Tool> = needed.into_iter().chain(others.first().map(|_| WG)).collect();
    missing.retain(|(program, _)| !is_installed(program));
    missing.sort_unstable();
    missing.dedup();
    let (programs, packages): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
    if !programs.is_empty() {
        bail!("not installed: {} (Debian: apt-get install {})", programs.join(", "), packages.join(" "));
    }
    match others.into_iter().find(|program| !is_installed(program)) {
        Some("wireguard-go") => bail!(
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
        let peer = Implementation::Other("x=/no/such/program {interface}".parse().unwrap());
        let error = check([], [&peer]).unwrap_err().to_string();
        assert!(error.contains("/no/such/program") || error.contains("wireguard-tools"), "{error}");
    }
}
