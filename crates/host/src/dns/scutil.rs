//! Sets DNS in the dynamic store of macOS by scutil(8), and by a file in /etc/resolver for each domain that
//! only the tunnel answers (resolver(5)).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weft_config::Dns;

use super::{DnsError, Places, program};
use crate::system_file;

/// Returns the program.
pub(super) fn find(places: &Places) -> Result<PathBuf, DnsError> {
    program::find(places, "scutil").ok_or_else(|| {
        let searched: Vec<_> = places.programs.iter().map(|path| path.display().to_string()).collect();
        DnsError::NoScutil { searched: searched.join(":") }
    })
}

/// Applies the settings, in place of earlier ones. A failure leaves none of them in force.
pub(super) fn add(places: &Places, interface: &str, settings: &Dns) -> Result<(), DnsError> {
    let scutil = find(places)?;
    let files = resolvers(places, interface, settings);
    // Nothing is changed if a domain belongs to someone else.
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists() && !is_own(path, interface)) {
        return Err(DnsError::ResolverExists { path: path.clone() });
    }
    let added = remove_files(places, interface)
        .and_then(|()| tell(&scutil, &set(interface, settings)))
        .and_then(|()| files.iter().try_for_each(|(path, text)| write(path, text)));
    if added.is_err()
        && let Err(error) = remove(places, interface)
    {
        tracing::warn!("while taking back DNS settings that failed: {error}");
    }
    added
}

/// Removes the settings. It is no error if there are none.
pub(super) fn remove(places: &Places, interface: &str) -> Result<(), DnsError> {
    let files = remove_files(places, interface);
    let gone = tell(&find(places)?, &format!("remove {}\nquit\n", key(interface)));
    let gone = match gone {
        Err(DnsError::Program { said, .. }) if said.contains("No such key") => Ok(()),
        other => other,
    };
    files.and(gone)
}

fn key(interface: &str) -> String {
    format!("State:/Network/Service/weft-{interface}/DNS")
}

/// Returns the input of scutil. An empty match domain matches every name.
fn set(interface: &str, settings: &Dns) -> String {
    let mut text = "d.init\n".to_owned();
    let mut list = |name: &str, items: Vec<String>| {
        if !items.is_empty() {
            let _ = writeln!(text, "d.add {name} * {}", items.join(" "));
        }
    };
    list("ServerAddresses", settings.servers.iter().map(ToString::to_string).collect());
    list("SearchDomains", settings.search.iter().map(|domain| domain.as_str().to_owned()).collect());
    if settings.is_split() {
        let own = settings.search.iter().chain(&settings.routing);
        list("SupplementalMatchDomains", own.map(|domain| domain.as_str().to_owned()).collect());
        text += "d.add SupplementalMatchDomainsNoSearch # 1\n";
    } else if settings.is_full() {
        list("SupplementalMatchDomains", vec!["\"\"".to_owned()]);
    }
    let _ = writeln!(text, "set {}\nquit", key(interface));
    text
}

/// Runs scutil. Its status is 0 whatever happens, and it is silent when all is well.
fn tell(scutil: &Path, input: &str) -> Result<(), DnsError> {
    let said = program::output(scutil, &[], input)?;
    if said.trim().is_empty() {
        return Ok(());
    }
    Err(program::failed(scutil, &[], "a complaint".to_owned(), said.lines().next().unwrap_or_default()))
}

fn first_line(interface: &str) -> String {
    format!("# made by weft for {interface}\n")
}

/// Returns the files for the domains that only the tunnel answers.
fn resolvers(places: &Places, interface: &str, settings: &Dns) -> Vec<(PathBuf, String)> {
    let domains = settings.routing.iter().filter(|domain| settings.is_split() && !domain.is_root());
    let servers: String = settings.servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    let text = first_line(interface) + &servers;
    domains.map(|domain| (places.resolvers.join(domain.as_str()), text.clone())).collect()
}

fn is_own(path: &Path, interface: &str) -> bool {
    system_file::read_text(path).is_ok_and(|text| text.starts_with(&first_line(interface)))
}

fn write(path: &Path, text: &str) -> Result<(), DnsError> {
    let failed = |error| DnsError::File { action: "write", path: path.to_owned(), error, advice: "" };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

/// Removes the interface's files, whatever domains they are for.
fn remove_files(places: &Places, interface: &str) -> Result<(), DnsError> {
    let failed =
        |path: &Path, error| DnsError::File { action: "remove", path: path.to_owned(), error, advice: "" };
    for entry in fs::read_dir(&places.resolvers).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_own(&path, interface) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path, error)),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "scutil_tests.rs"]
mod tests;
