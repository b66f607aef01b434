//! Runs resolvconf(8), of openresolv or Debian: a program that accepts the lines of a resolv.conf for an
//! interface.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use weft_config::Dns;

use super::super::program::{self, run};
use super::super::{DnsError, Method, Overruled, Places, Record, Seen, list};
use crate::system_file;

/// How many servers the C library asks (`MAXNS` in resolv.h).
const MAX_SERVERS: usize = 3;
/// What precedes the lines of each entry in a list of them.
const HEADER: &str = "# resolv.conf from ";

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

/// Reports whether it writes the file that programs read. Debian's writes another file, to which
/// /etc/resolv.conf has to be a link, and only while its updates are enabled.
#[cfg(target_os = "linux")]
pub(super) fn writes_the_file(places: &Places, program: &Path) -> bool {
    if is_resolvectl(program) {
        return false;
    }
    if !places.interface_order.exists() || is_openresolv(program) {
        return true;
    }
    places.resolvconf.join("enable-updates").exists() && is_linked(places)
}

/// Reports whether /etc/resolv.conf is a link to a file of resolvconf, which need not exist yet.
fn is_linked(places: &Places) -> bool {
    let Ok(target) = fs::read_link(&places.resolv_conf) else { return false };
    let target = places.resolv_conf.parent().unwrap_or(Path::new("/")).join(target);
    let directory = target.parent().and_then(|directory| fs::canonicalize(directory).ok());
    directory.is_some() && directory == fs::canonicalize(&places.resolvconf).ok()
}

/// Passes the settings to resolvconf. After a failure the settings are removed: resolvconf stores them before
/// it informs other programs.
pub(super) fn add(places: &Places, interface: &str, settings: &Dns) -> Result<(), DnsError> {
    let program = find(places)?;
    let entry = entry(places, interface);
    let is_known = has_entry(places, &entry, settings);
    let mut arguments = vec!["-a".to_owned(), entry];
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
    let mut added = run(&program, &arguments, &lines(settings));
    // What it knows already makes it write nothing, also if another program has written the file since.
    if added.is_ok() && is_known == Some(true) {
        added = run(&program, &["-u".to_owned()], "");
    }
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

/// Returns a record that removes what resolvconf has of an interface, if its directory shows that it has
/// something.
pub(super) fn unrecorded(places: &Places, interface: &str) -> Option<Record> {
    let entry = entry(places, interface);
    let mut directories = fs::read_dir(&places.resolvconf).ok()?.flatten();
    let is_there = directories.any(|directory| directory.path().join(&entry).is_file());
    is_there.then(|| Record { method: Method::Resolvconf, index: 0, settings: Dns::default() })
}

/// Removes the entry of an interface where resolvconf itself was removed. Returns the lines of the others.
#[cfg(target_os = "linux")]
pub(super) fn forget(places: &Places, interface: &str) -> String {
    let own = entry(places, interface);
    let files = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let mut lines = Vec::new();
    for file in files(places.resolvconf.clone()).flat_map(|directory| files(directory.path())) {
        let name = file.file_name().into_string().unwrap_or_default();
        // The entries that are exclusive have a number too.
        if name == own || name.split_once(' ').is_some_and(|(_, name)| name == own) {
            let _gone = fs::remove_file(file.path());
            continue;
        }
        let is_told =
            |line: &&str| ["nameserver ", "search ", "options "].iter().any(|key| line.starts_with(key));
        lines.extend(read(&file.path()).lines().filter(is_told).map(|line| format!("{line}\n")));
    }
    lines.dedup();
    lines.concat()
}

/// Returns the lines of all other interfaces; `None`: there is no resolvconf, or it has none.
#[cfg(target_os = "linux")]
pub(super) fn others(places: &Places, interface: &str) -> Option<String> {
    let listed = all(places)?;
    Some(without(&listed, &entry(places, interface))).filter(|lines| !lines.is_empty())
}

/// Looks at the entry of the interface, and at the file that resolvconf writes. A local resolver that it
/// feeds is at a loopback address there.
pub(super) fn look(places: &Places, interface: &str, settings: &Dns) -> Seen {
    let entry = entry(places, interface);
    if has_entry(places, &entry, settings) == Some(false) {
        return Seen::Replaced(format!("no entry {entry} with them in resolvconf"));
    }
    if !settings.is_full() {
        return Seen::InForce;
    }
    let text = read(&places.resolv_conf);
    let first = servers(&text).next();
    let is_fed = first.is_some_and(|first| first.is_loopback());
    let is_ours = |server: &IpAddr| settings.servers.contains(server);
    if first.as_ref().is_some_and(is_ours) {
        // Debian's makes none exclusive.
        let other = servers(&text).take(MAX_SERVERS).find(|server| !is_ours(server));
        return other.map_or(Seen::InForce, |other| {
            let by = format!("resolvconf lists {other} too, which is asked where they do not answer");
            let advice =
                "install openresolv in place of Debian's resolvconf: it can leave out the servers of others";
            Seen::Overruled(Overruled { by, advice: advice.to_owned() })
        });
    }
    let is_written_by_it = text.contains("resolvconf") || is_linked(places);
    if is_fed || is_written_by_it {
        if let Some(other) = exclusive(places).filter(|other| *other != entry) {
            return overruled(format!("resolvconf gives precedence to {other}, which is exclusive"));
        }
        // Debian's sorts the entries, and makes none exclusive.
        if let Some(first) = first.filter(|_| !is_fed && !places.resolvconf.join(EXCLUSIVE).exists()) {
            let listed = all(places).unwrap_or_default();
            let is_of = |name: &&str| *name != entry && servers(&of(&listed, name)).any(|one| one == first);
            if let Some(other) = listed.lines().filter_map(|line| line.strip_prefix(HEADER)).find(is_of) {
                return overruled(format!("resolvconf puts {first} of {other} first"));
            }
        }
    }
    if is_fed { Seen::InForce } else { Seen::Replaced(beginning(&places.resolv_conf)) }
}

fn overruled(by: String) -> Seen {
    let advice = "take the other interface down, or see its place in /etc/resolvconf/interface-order; `weft reload` \
                  makes the tunnel's name servers exclusive again";
    Seen::Overruled(Overruled { by, advice: advice.to_owned() })
}

/// The directory in which openresolv has a file for each exclusive entry: the first by name has precedence.
const EXCLUSIVE: &str = "exclusive";

fn exclusive(places: &Places) -> Option<String> {
    let files = fs::read_dir(places.resolvconf.join(EXCLUSIVE)).ok()?;
    let first = files.filter_map(|file| file.ok()?.file_name().into_string().ok()).min()?;
    first.split_once(' ').map(|(_, entry)| entry.to_owned())
}

/// Reports whether resolvconf has an entry with these settings: each kind and version has the entries in
/// another directory below its own. It is asked itself only if that does not show the entry; `None`: it
/// cannot be asked.
fn has_entry(places: &Places, entry: &str, settings: &Dns) -> Option<bool> {
    let has = |path: &Path| system_file::read_text(path).is_ok_and(|text| has_all(&text, settings));
    let mut directories = fs::read_dir(&places.resolvconf).into_iter().flatten().flatten();
    if directories.any(|directory| has(&directory.path().join(entry))) {
        return Some(true);
    }
    all(places).map(|listed| has_all(&of(&listed, entry), settings))
}

/// Reports whether an entry has all servers, or the domains if there are no servers.
fn has_all(text: &str, settings: &Dns) -> bool {
    let found: Vec<IpAddr> = servers(text).collect();
    let has_word = |domain: &str| text.split_whitespace().any(|word| word.eq_ignore_ascii_case(domain));
    match settings.servers.is_empty() {
        true => settings.search.iter().all(|domain| has_word(domain.as_str())),
        false => settings.servers.iter().all(|server| found.contains(server)),
    }
}

fn servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()?.parse().ok()
    })
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&system_file::read(path).unwrap_or_default()).into_owned()
}

/// Says in words for people what a file is.
fn beginning(path: &Path) -> String {
    match system_file::read(path) {
        Ok(content) => {
            let text = String::from_utf8_lossy(&content);
            let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            format!(
                "a file that begins with `{}`",
                line.chars().filter(|c| !c.is_control()).take(80).collect::<String>()
            )
        }
        Err(error) => match fs::read_link(path) {
            Ok(target) => format!("a link to {}: {error}", target.display()),
            Err(_) => format!("no file: {error}"),
        },
    }
}

/// Returns the lines of all entries; `None`: resolvconf cannot be asked.
fn all(places: &Places) -> Option<String> {
    program::output(&find(places).ok()?, &["-l".to_owned()], "").ok()
}

/// Returns the lines of one entry of a list.
fn of(listed: &str, entry: &str) -> String {
    lines_of(listed, |name| name == entry)
}

/// Returns the lines of a list of entries without those of one entry.
#[cfg(target_os = "linux")]
fn without(listed: &str, entry: &str) -> String {
    lines_of(listed, |name| name != entry)
}

fn lines_of(listed: &str, is_wanted: impl Fn(&str) -> bool) -> String {
    let mut is_in = is_wanted("");
    let lines = listed.lines().filter(|line| {
        if let Some(name) = line.strip_prefix(HEADER) {
            is_in = is_wanted(name.trim());
        }
        is_in
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the name of the interface's entry in resolvconf. Debian's resolvconf sorts entries by the patterns
/// of a file, in which a prefix with a star stands for tunnels (`tun*`): `tun.wg0` is then sorted like a
/// tunnel.
fn entry(places: &Places, interface: &str) -> String {
    let order = system_file::read_text(&places.interface_order).unwrap_or_default();
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

pub(super) fn is_openresolv(program: &Path) -> bool {
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
