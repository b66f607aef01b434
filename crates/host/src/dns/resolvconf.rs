//! Runs resolvconf(8), of openresolv or Debian: a program that accepts the lines of a resolv.conf for an
//! interface.

use std::fs;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::path::PathBuf;

use weft_config::Dns;

use super::super::program::{self, run};
use super::super::{DnsError, Method, Places, list};

/// Returns the program in the first directory that has it.
pub(super) fn find(places: &Places) -> Result<PathBuf, DnsError> {
    program::find(places, "resolvconf").ok_or_else(|| {
        let mut searched: Vec<_> = places.programs.iter().map(|path| path.display().to_string()).collect();
        searched.dedup();
        DnsError::NoResolvconf { searched: searched.join(":") }
    })
}

/// Reports whether it is systemd's resolvectl under another name.
#[cfg(target_os = "linux")]
pub(super) fn is_resolvectl(program: &Path) -> bool {
    fs::canonicalize(program).is_ok_and(|real| real.file_name().is_some_and(|name| name == "resolvectl"))
}

/// Passes the settings to resolvconf. After a failure the settings are removed: resolvconf stores them before
/// it informs other programs.
pub(super) fn add(places: &Places, interface: &str, settings: &Dns) -> Result<(), DnsError> {
    let program = find(places)?;
    let mut arguments = vec!["-a".to_owned(), entry(places, interface)];
    arguments.extend(["-m", "0"].map(str::to_owned));
    if settings.is_split() {
        if !is_openresolv(&program) {
            return Err(DnsError::Split { method: Method::Resolvconf, domains: list(&settings.routing) });
        }
        tracing::warn!(
            interface,
            "openresolv uses DNS servers for {} only where it feeds a local resolver such as dnsmasq or unbound \
             (resolvconf.conf(5)), and searches these domains too",
            list(&settings.routing)
        );
        arguments.push("-p".to_owned());
    } else if settings.is_full() {
        arguments.push("-x".to_owned());
    }
    let added = run(&program, &arguments, &lines(settings));
    if added.is_err()
        && let Err(error) = remove(places, interface)
    {
        tracing::debug!(interface, "what resolvconf may have stored stays: {error}");
    }
    added
}

/// Removes the settings. It is no error if resolvconf has none (`-f`).
pub(super) fn remove(places: &Places, interface: &str) -> Result<(), DnsError> {
    let arguments = ["-d".to_owned(), entry(places, interface), "-f".to_owned()];
    run(&find(places)?, &arguments, "")
}

/// Returns the lines of all other interfaces; `None`: there is no resolvconf, or it has none.
#[cfg(target_os = "linux")]
pub(super) fn others(places: &Places, interface: &str) -> Option<String> {
    let listed = program::output(&find(places).ok()?, &["-l".to_owned()], "").ok()?;
    Some(without(&listed, &entry(places, interface))).filter(|lines| !lines.is_empty())
}

/// Returns the lines of a list of entries without those of one entry.
#[cfg(target_os = "linux")]
fn without(listed: &str, entry: &str) -> String {
    const HEADER: &str = "# resolv.conf from ";
    let mut is_own = false;
    let others = listed.lines().filter(|line| {
        if let Some(name) = line.strip_prefix(HEADER) {
            is_own = name.trim() == entry;
        }
        !is_own
    });
    others.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the name of the interface's entry in resolvconf. Debian's resolvconf sorts entries by the patterns
/// of a file, in which a prefix with a star stands for tunnels (`tun*`): `tun.wg0` is then sorted like a
/// tunnel.
fn entry(places: &Places, interface: &str) -> String {
    let order = fs::read_to_string(&places.interface_order).unwrap_or_default();
    match order.lines().find_map(prefix) {
        Some(prefix) => format!("{prefix}.{interface}"),
        None => interface.to_owned(),
    }
}

fn prefix(pattern: &str) -> Option<&str> {
    let prefix = pattern.strip_suffix('*')?;
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!prefix.is_empty() && prefix.bytes().all(allowed)).then_some(prefix)
}

fn lines(settings: &Dns) -> String {
    let mut text = String::new();
    for server in &settings.servers {
        text += &format!("nameserver {server}\n");
    }
    let routing = settings.routing.iter().filter(|domain| !domain.is_root());
    let routing = routing.filter(|_| settings.is_split());
    let domains: Vec<_> = settings.search.iter().chain(routing).map(|domain| domain.as_str()).collect();
    if !domains.is_empty() {
        text += &format!("search {}\n", domains.join(" "));
    }
    text
}

fn is_openresolv(program: &std::path::Path) -> bool {
    program::output(program, &["--version".to_owned()], "").is_ok_and(|said| said.contains("openresolv"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn entries_of_others_are_told_from_ones_own() {
        let listed = "# resolv.conf from eth0.dhclient\nnameserver 192.0.2.1\n\n# resolv.conf from wg0\nnameserver \
                      10.0.0.1\nsearch a\n# resolv.conf from wg01\nnameserver 10.0.0.2\n";
        assert_eq!(
            without(listed, "wg0"),
            "# resolv.conf from eth0.dhclient\nnameserver 192.0.2.1\n\n# resolv.conf from wg01\nnameserver 10.0.0.2\n"
        );
    }

    #[test]
    fn the_first_pattern_of_a_prefix_and_a_star_gives_the_prefix() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places { interface_order: directory.path().join("order"), ..Places::default() };
        assert_eq!(entry(&places, "wg0"), "wg0");
        let debian = "# order\nlo.inet6\nlo.@(dhclient|pppd)\nlo.*\ntun*\ntap*\n*\n";
        fs::write(&places.interface_order, debian).unwrap();
        assert_eq!(entry(&places, "wg0"), "tun.wg0");
        fs::write(&places.interface_order, "lo.*\n*\n").unwrap();
        assert_eq!(entry(&places, "wg0"), "wg0");
    }
}
