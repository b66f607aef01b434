//! What the unit of systemd in which weft runs forbids commands, and the settings that allow it.

use std::fs;
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

/// Capabilities that commands of such files need, with their numbers (linux/capability.h).
const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (1, "CAP_DAC_OVERRIDE"), (0, "CAP_CHOWN")];
/// Directories that such commands write to.
const DIRECTORIES: [&str; 3] = ["/etc", "/run", "/var"];

/// Returns what this process's unit forbids, if it is in one that forbids something.
pub(super) fn forbidden() -> Option<String> {
    let unit = weft_config::unit()?;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = u64::from_str_radix(capabilities?.trim(), 16).ok()?;
    let is_read_only =
        |path: &str| statvfs(path).is_ok_and(|state| state.flags().contains(FsFlags::ST_RDONLY));
    let has_sysctls = Path::new("/proc/sys/net").exists();
    told(&unit, capabilities, has_sysctls, is_read_only)
}

fn told(
    unit: &str,
    capabilities: u64,
    has_sysctls: bool,
    is_read_only: impl Fn(&str) -> bool,
) -> Option<String> {
    let missing = CAPABILITIES.iter().filter(|(number, _)| capabilities >> number & 1 == 0);
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    let closed: Vec<&str> = DIRECTORIES.into_iter().filter(|path| is_read_only(path)).collect();
    let parts = [
        (!missing.is_empty())
            .then(|| format!("{} (AmbientCapabilities= and CapabilityBoundingSet=)", missing.join(" "))),
        (!closed.is_empty()).then(|| format!("write access to {} (ReadWritePaths=)", closed.join(" "))),
        (!has_sysctls).then(|| "sysctls (ProcSubset=all and ProtectKernelTunables=no)".to_owned()),
        (has_sysctls && is_read_only("/proc/sys"))
            .then(|| "write access to sysctls (ProtectKernelTunables=no)".to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| {
        format!(
            "the unit {unit} does not let it have {}: give it what it needs in a drop-in (`systemctl edit {unit}`; \
             docs/SYSTEMD.md, The two profiles, has two), or try it by hand",
            parts.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn what_a_unit_forbids_is_told_with_the_settings_that_allow_it() {
        let all = u64::MAX;
        assert_eq!(told("weft@wg0", all, true, |_| false), None);
        #[rustfmt::skip]
        let cases = [
            (told("weft@wg0", 1 << 12, true, |_| false), "CAP_NET_RAW CAP_DAC_OVERRIDE CAP_CHOWN (AmbientCapabilities="),
            (told("weft@wg0", all, true, |path| path == "/etc"), "write access to /etc (ReadWritePaths=): give"),
            (told("weft@wg0", all, true, |path| path == "/proc/sys"), "write access to sysctls (ProtectKernelTunables=no): give"),
            (told("weft@wg0", all, false, |_| false), "sysctls (ProcSubset=all and ProtectKernelTunables=no): give"),
        ];
        for (told, expected) in cases {
            let told = told.unwrap();
            let begin = format!("the unit weft@wg0 does not let it have {expected}");
            assert!(told.starts_with(&begin) && told.contains("`systemctl edit weft@wg0`"), "{told}");
        }
    }
}
