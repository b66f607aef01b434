//! DNS on Linux: finds out what resolves names here, and passes the settings to it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use weft_config::Dns;

use super::{Choice, DnsError, Method, Overruled, Places, Record, Seen, Upstream, list};
use crate::netns;
use crate::system_file;

mod file;
mod resolvconf;
mod resolved;

/// The files to which /etc/resolv.conf may be linked, with a stub address of systemd-resolved. Its
/// `/run/systemd/resolve/resolv.conf` is none of them: programs ask all servers in it themselves.
const RESOLVED_FILES: [&str; 2] = ["/run/systemd/resolve/stub-resolv.conf", "/usr/lib/systemd/resolv.conf"];
/// The addresses at which systemd-resolved answers (systemd-resolved.service(8)).
const RESOLVED_STUBS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54))];

/// Chooses the method: what programs look names up through. Settings of a systemd-resolved or a resolvconf
/// that only is there would have no effect on them.
pub(super) fn method(places: &Places, choice: Choice) -> Result<Method, DnsError> {
    match choice {
        Choice::Resolved => resolved::Session::open(places).map(|_| Method::Resolved),
        Choice::Resolvconf => resolvconf::find(places).map(|_| Method::Resolvconf),
        Choice::File => Ok(Method::File),
        Choice::Auto => Ok(choose(places, true)),
    }
}

/// Returns the method without the start of a program.
pub(super) fn present_method(places: &Places) -> Method {
    choose(places, false)
}

fn choose(places: &Places, may_start: bool) -> Method {
    if asks_resolved(places) {
        match resolved::is_usable(places, may_start) {
            Ok(()) => return Method::Resolved,
            Err(error) => tracing::debug!("not using systemd-resolved: {error}"),
        }
    }
    // resolvconf has one state for all namespaces that share their files, and writes to that file only.
    let is_shared =
        || netns::ancestors_elsewhere().any(|process| file::shares_directory(&places.resolv_conf, process));
    let writes_it = |program: PathBuf| resolvconf::writes_the_file(places, &program);
    let is_used = resolvconf::find(places).is_ok_and(writes_it) && !is_shared();
    if is_used { Method::Resolvconf } else { Method::File }
}

/// Reports whether the C library's lookups reach systemd-resolved.
fn asks_resolved(places: &Places) -> bool {
    links_to_resolved(&places.resolv_conf)
        || system_file::read_text(&places.resolv_conf).is_ok_and(|text| names_a_stub(&text))
        || system_file::read_text(&places.nsswitch).is_ok_and(|text| has_nss_resolve(&text))
}

/// Reports whether the file is a link to a file of systemd-resolved, which need not exist before
/// systemd-resolved runs.
fn links_to_resolved(resolv_conf: &Path) -> bool {
    let Ok(target) = fs::read_link(resolv_conf) else { return false };
    let target = target.to_string_lossy();
    // The link may be relative (../run/systemd/resolve/stub-resolv.conf).
    RESOLVED_FILES.iter().any(|file| target.ends_with(file) || *target == file[1..])
}

fn names_a_stub(resolv_conf: &str) -> bool {
    names_a_server(resolv_conf, |server| RESOLVED_STUBS.contains(&server))
}

fn has_nss_resolve(nsswitch: &str) -> bool {
    nsswitch.lines().any(|line| {
        let line = line.split('#').next().unwrap_or_default();
        line.trim()
            .strip_prefix("hosts:")
            .is_some_and(|services| services.split_whitespace().any(|service| service == "resolve"))
    })
}

pub(super) fn apply(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        Method::Resolved => resolved::Session::open(places)?.set(interface, record.index, &record.settings),
        Method::Resolvconf => resolvconf::add(places, interface, &record.settings),
        Method::Scutil | Method::Registry => Err(DnsError::Unsupported),
        Method::File if record.settings.is_split() => {
            Err(DnsError::Split { method: Method::File, domains: list(&record.settings.routing) })
        }
        Method::File => file::add(places, interface, &record.settings),
    }
}

pub(super) fn undo(places: &Places, interface: &str, record: &Record) -> Result<(), DnsError> {
    match record.method {
        // systemd-resolved forgets an interface that is removed, and another interface may have its index by
        // now.
        Method::Resolved if index_of(interface) != Some(record.index) => Ok(()),
        Method::Resolved => resolved::revert(places, interface, record.index),
        Method::Resolvconf => match resolvconf::remove(places, interface) {
            Err(DnsError::NoResolvconf { .. }) => {
                file::replace(places, &record.settings.servers, &resolvconf::forget(places, interface))
            }
            removed => removed,
        },
        Method::File => file::remove(places, interface),
        Method::Scutil | Method::Registry => Err(DnsError::Unsupported),
    }
}

/// Returns the directory for the former content of the file. A container with a read-only root has only
/// /run, which ends with it, as its /etc/resolv.conf does. State that is in one of them is used until it is
/// removed.
pub(super) fn state_directory<'a>(lasting: &'a str, in_run: &'a str) -> &'a str {
    let has_state = |path: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    };
    let is_read_only = |path: &str| file::is_read_only(path.as_ref());
    let is_fallback = || !has_state(lasting) && is_read_only(lasting) && !is_read_only(in_run);
    if has_state(in_run) || is_fallback() { in_run } else { lasting }
}

/// Finds out what will become of settings, without a change and without the start of a program.
pub(super) fn foresee(
    places: &Places,
    interface: &str,
    settings: &Dns,
) -> Result<Option<Overruled>, DnsError> {
    let method = choose(places, false);
    let is_refused = match method {
        Method::Resolved => return resolved::foresee(places, index_of(interface), settings),
        Method::Resolvconf => settings.is_split() && !resolvconf::is_openresolv(&resolvconf::find(places)?),
        _ => settings.is_split(),
    };
    if is_refused {
        return Err(DnsError::Split { method, domains: list(&settings.routing) });
    }
    if method == Method::File {
        file::foresee(places)?;
    }
    Ok(None)
}

/// Looks at what programs read: at the file, for systemd-resolved and resolvconf also whether they have the
/// settings.
pub(super) fn look(places: &Places, interface: &str, record: &Record) -> Result<Seen, DnsError> {
    let replaced = match record.method {
        Method::Resolved if !asks_resolved(places) => Some(file::beginning(&places.resolv_conf)),
        Method::Resolved => return resolved::look(places, record.index, &record.settings),
        Method::Resolvconf => return Ok(resolvconf::look(places, interface, &record.settings)),
        Method::File => file::replaced(places, interface)?,
        Method::Scutil | Method::Registry => None,
    };
    Ok(replaced.map_or(Seen::InForce, Seen::Replaced))
}

fn names_a_server(resolv_conf: &str, is_wanted: impl Fn(IpAddr) -> bool) -> bool {
    resolv_conf.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("nameserver")
            && words.next().and_then(|ip| ip.parse().ok()).is_some_and(&is_wanted)
    })
}

pub(super) fn unrecorded(places: &Places, interface: &str) -> Option<Record> {
    resolvconf::unrecorded(places, interface)
}

pub(super) fn repair(places: &Places) -> Result<Vec<String>, DnsError> {
    file::repair(places)
}

pub(super) fn upstream(places: &Places, interface: &str, index: Option<u32>, name: &str) -> Upstream {
    let text = file::beneath(places, interface).unwrap_or_else(|error| {
        tracing::debug!("{error}");
        String::new()
    });
    let mut found = Upstream::parse(&text);
    let program = resolvconf::find(places).ok();
    let is_resolvectl = program.as_deref().is_some_and(resolvconf::is_resolvectl);
    if asks_resolved(places) || names_a_stub(&text) {
        let asked = resolved::Session::open(places).and_then(|session| session.upstream(index, name));
        match asked {
            Ok((servers, search)) if !servers.is_empty() => found.replace(servers, search),
            Ok(_) => {}
            Err(error) => tracing::debug!("not using systemd-resolved: {error}"),
        }
    } else if program.is_some() && !is_resolvectl && !file::is_ours(places) {
        let others = resolvconf::others(places, interface).map(|text| Upstream::parse(&text));
        if let Some(others) = others.filter(|others| !others.servers.is_empty()) {
            found.replace(others.servers, others.search);
        }
    }
    // What a resolver on this machine asks has no mark, and goes through the tunnel.
    if !found.servers.is_empty() && found.servers.iter().all(|server| server.ip().is_loopback()) {
        let behind = system_file::read_text(&places.no_stub).unwrap_or_default();
        let mut behind = Upstream::parse(&behind).servers;
        behind.retain(|server| !server.ip().is_loopback());
        if !behind.is_empty() {
            found.servers = behind;
        }
    }
    found
}

fn index_of(interface: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(interface).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_resolved_counts_even_while_it_dangles() {
        let directory = tempfile::tempdir().unwrap();
        for (place, (target, counts)) in [
            ("../run/systemd/resolve/stub-resolv.conf", true),
            ("/run/systemd/resolve/resolv.conf", false),
            ("/usr/lib/systemd/resolv.conf", true),
            ("/run/NetworkManager/resolv.conf", false),
        ]
        .into_iter()
        .enumerate()
        {
            let link = directory.path().join(place.to_string());
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert_eq!(links_to_resolved(&link), counts, "{target}");
        }
    }

    #[test]
    fn the_stub_and_the_nss_module_are_seen() {
        assert!(names_a_stub("# x\nnameserver 127.0.0.53\noptions edns0\n"));
        assert!(!names_a_stub("nameserver 127.0.0.1\n#nameserver 127.0.0.53\n"));
        assert!(has_nss_resolve("passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n"));
        assert!(!has_nss_resolve("hosts: files dns # resolve\n#hosts: resolve\nnetworks: resolve\n"));
    }
}
