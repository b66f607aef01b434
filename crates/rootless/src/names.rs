//! Names of the mount namespace: they are looked up at the tunnel's name servers and nowhere else.
//!
//! Programs look names up by their C library, which reads resolv.conf(5) and nsswitch.conf(5), or asks nscd,
//! systemd-resolved or avahi over a socket file. Their sockets would lead past the tunnel, so that they are
//! hidden. Sockets without a file are of a network namespace.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use weft_config::Dns;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const NSSWITCH_CONF: &str = "/etc/nsswitch.conf";
/// Directories with the sockets of services that look names up on the host.
const SERVICES: [&str; 4] = ["/run/nscd", "/var/run/nscd", "/run/systemd/resolve", "/run/avahi-daemon"];
/// Directories that may be covered for a moment, while nothing else runs in the mount namespace.
const COVERABLE: [&str; 5] = ["/tmp", "/var/tmp", "/mnt", "/srv", "/opt"];

/// The name servers of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Name servers, reached through the tunnel. Without any, no name is found.
    pub servers: Vec<IpAddr>,
    /// Domains that are appended to short names.
    pub search: Vec<String>,
}

impl From<&Dns> for Names {
    /// Every name is looked up at these servers, also where they are for some domains only: there are no
    /// others.
    fn from(dns: &Dns) -> Self {
        Self { servers: dns.servers.clone(), search: dns.search.iter().map(ToString::to_string).collect() }
    }
}

impl Names {
    /// Returns the name servers of this host.
    ///
    /// # Errors
    /// There are none, and what is wrong.
    pub fn of_host() -> Result<Self, String> {
        let text = fs::read_to_string(RESOLV_CONF).map_err(|error| format!("{RESOLV_CONF}: {error}"))?;
        let names = Self::parse(&text);
        if names.servers.is_empty() {
            return Err(format!(
                "{RESOLV_CONF} has no `nameserver` line with an address, so this host looks no name up"
            ));
        }
        Ok(names)
    }

    /// Reads resolv.conf(5): the C library asks three servers at most, and the last search list counts.
    fn parse(text: &str) -> Self {
        const SERVERS: usize = 3;
        let (mut servers, mut search) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    servers.extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
                }
                Some("search" | "domain") => search = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        servers.truncate(SERVERS);
        Self { servers, search }
    }

    /// Returns the text of resolv.conf(5).
    pub(crate) fn resolv_conf(&self) -> String {
        let mut text = "# Made by weft for this network namespace.\n".to_owned();
        if self.servers.is_empty() {
            text += "# The configuration has no DNS: no name is found.\n";
        }
        for server in &self.servers {
            let _ = writeln!(text, "nameserver {server}");
        }
        if !self.search.is_empty() {
            let _ = writeln!(text, "search {}", self.search.join(" "));
        }
        text
    }
}

/// Returns an nsswitch.conf(5) that looks hosts up in files and, if there are servers, with DNS: other
/// modules ask services of the host.
fn nsswitch_conf(host: &str, has_servers: bool) -> String {
    let hosts = if has_servers { "hosts: files dns" } else { "hosts: files" };
    let is_hosts = |line: &str| {
        line.trim_start().strip_prefix("hosts").is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let others = host.lines().filter(|line| !is_hosts(line));
    others.chain([hosts]).map(|line| format!("{line}\n")).collect()
}

/// Sets the name servers of the mount namespace of this process.
pub(crate) fn set(resolv_conf: &str, has_servers: bool) -> Result<(), String> {
    let failed = |what: String| move |error: io::Error| format!("cannot {what}: {error}");
    // Found out before its directory may be hidden.
    let file = fs::canonicalize(RESOLV_CONF).map_err(failed(format!(
        "look names up through the tunnel, because {RESOLV_CONF} is no file that could be replaced: make one"
    )))?;
    let nsswitch = fs::read_to_string(NSSWITCH_CONF).ok().map(|host| nsswitch_conf(&host, has_servers));
    for directory in SERVICES.iter().filter_map(|directory| fs::canonicalize(directory).ok()) {
        hide(&directory).map_err(failed(format!("hide {}", directory.display())))?;
    }
    let scratch = Scratch::cover(&file).map_err(failed("mount a directory for files".to_owned()))?;
    let replace = |target: &Path, name: &str, text: &str| scratch.replace(target, name, text);
    let replaced = if file.exists() {
        replace(&file, "resolv.conf", resolv_conf)
    } else {
        // In a directory that is empty now.
        file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, resolv_conf))
    };
    replaced.map_err(failed(format!("replace {RESOLV_CONF}")))?;
    if let Some(nsswitch) = nsswitch {
        let target = Path::new(NSSWITCH_CONF);
        replace(target, "nsswitch.conf", &nsswitch).map_err(failed(format!("replace {NSSWITCH_CONF}")))?;
    }
    Ok(())
}

/// Covers a directory by an empty one.
fn hide(directory: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("tmpfs"), directory, Some("tmpfs"), flags, Some("mode=755"))?)
}

/// A directory in memory that takes the files, until they are mounted in place.
struct Scratch(PathBuf);

impl Scratch {
    /// Covers a directory that does not lead to `file`.
    fn cover(file: &Path) -> io::Result<Self> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for directory in COVERABLE.iter().map(Path::new).filter(|directory| !file.starts_with(directory)) {
            match hide(directory) {
                Ok(()) => return Ok(Self(directory.to_owned())),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    fn replace(&self, target: &Path, name: &str, text: &str) -> io::Result<()> {
        let source = self.0.join(name);
        fs::write(&source, text)?;
        let none = None::<&Path>;
        Ok(mount(Some(&source), target, none, MsFlags::MS_BIND, none)?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The files stay mounted where they replace others.
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tunnels_servers_are_the_only_ones() {
        let names = Names {
            servers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            search: vec!["corp.example".to_owned(), "example".to_owned()],
        };
        let text = names.resolv_conf();
        assert!(
            text.ends_with("\nnameserver 10.0.0.1\nnameserver fd00::1\nsearch corp.example example\n"),
            "{text}"
        );
        let none = Names { servers: Vec::new(), search: Vec::new() }.resolv_conf();
        assert!(none.lines().all(|line| line.starts_with('#')), "{none}");
    }

    #[test]
    fn the_hosts_servers_are_read_as_the_c_library_does() {
        let text = "# nameserver 9.9.9.9\nnameserver 192.0.2.1\ndomain a.example\nsearch b.example c.example\n\
                    nameserver fe80::1%eth0\nnameserver 2001:db8::1\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n";
        let names = Names::parse(text);
        let servers: Vec<String> = names.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1", "2001:db8::1", "192.0.2.3"]);
        assert_eq!(names.search, ["b.example", "c.example"]);
    }

    #[test]
    fn hosts_are_looked_up_in_files_and_with_dns() {
        let host =
            "passwd: files systemd\nhosts:  mymachines resolve [!UNAVAIL=return] files dns\nnetworks: files";
        assert_eq!(nsswitch_conf(host, true), "passwd: files systemd\nnetworks: files\nhosts: files dns\n");
        assert_eq!(nsswitch_conf("hosts : resolve\n", false), "hosts: files\n");
    }
}
