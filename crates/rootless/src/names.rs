//! The name servers of a namespace, and the files that tell programs of them.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use weft_config::{Dns, read_regular_text};

const RESOLV_CONF: &str = "/etc/resolv.conf";

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
        Self::of_file(Path::new(RESOLV_CONF))
    }

    fn of_file(file: &Path) -> Result<Self, String> {
        let shown = file.display();
        let text = read_regular_text(file).map_err(|error| format!("{shown}: {error}"))?;
        let names = Self::parse(&text);
        if names.servers.is_empty() {
            return Err(format!(
                "{shown} has no `nameserver` line with an address, so this host looks no name up"
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
pub(crate) fn nsswitch_conf(host: &str, has_servers: bool) -> String {
    let hosts = if has_servers { "hosts: files dns" } else { "hosts: files" };
    let is_hosts = |line: &str| {
        line.trim_start().strip_prefix("hosts").is_some_and(|rest| rest.trim_start().starts_with(':'))
    };
    let others = host.lines().filter(|line| !is_hosts(line));
    others.chain([hosts]).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir, write};
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn the_hosts_file_is_read_if_it_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        create_dir(at("directory")).unwrap();
        File::create(at("large")).unwrap().set_len(1 << 40).unwrap();
        write(at("none"), "search example\n").unwrap();
        write(at("file"), "nameserver 192.0.2.53\n").unwrap();
        symlink("file", at("link")).unwrap();
        for (name, told) in [
            ("fifo", "not a regular file"),
            ("endless", "not a regular file"),
            ("directory", "not a regular file"),
            ("large", "too large"),
            ("none", "no `nameserver` line"),
            ("missing", "No such file"),
        ] {
            let error = Names::of_file(&at(name)).unwrap_err();
            assert!(error.starts_with(at(name).to_str().unwrap()) && error.contains(told), "{error}");
        }
        for name in ["file", "link"] {
            let servers = Names::of_file(&at(name)).unwrap().servers;
            assert_eq!(servers, ["192.0.2.53".parse::<IpAddr>().unwrap()]);
        }
    }

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
