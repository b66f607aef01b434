//! The DNS servers and domains of an interface, given to whatever resolves names on this machine.
//!
//! Called on a control thread only: every call waits, for half a minute at most, and none may be made from within a
//! tokio runtime. What was applied is a [`Record`], which a later process can undo after a crash.
//!
//! Servers without a routing domain are for every name, and for those of nobody else: what `DNS =` means to
//! wg-quick, which asks resolvconf for the interface to be exclusive (`-x`; for systemd-resolved the domain `~.`). A
//! routing domain (`~corp.example`) makes the servers answer for it and for the search domains alone: split DNS.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weft_config::{Domain, InterfaceName, InvalidDomain};

use crate::routes::Link;

mod error;
#[cfg_attr(target_os = "linux", path = "dns/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "dns/unsupported.rs")]
mod platform;

pub use error::DnsError;

/// What an interface wants of the machine's resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Asked in this order.
    pub servers: Vec<IpAddr>,
    /// Appended to names without dots, and answered by the servers.
    pub search: Vec<Domain>,
    /// Answered by the servers, and not searched (`~domain`). If there are any, other names are left to others.
    pub routing: Vec<Domain>,
}

impl Settings {
    /// Settings whose domains are text so far; a routing domain stands without its tilde.
    pub fn new(servers: &[IpAddr], search: &[String], routing: &[String]) -> Result<Self, InvalidDomain> {
        let domains = |names: &[String]| names.iter().map(|name| name.parse()).collect::<Result<_, _>>();
        Ok(Self { servers: servers.to_vec(), search: domains(search)?, routing: domains(routing)? })
    }

    /// Nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.search.is_empty() && self.routing.is_empty()
    }

    /// The servers answer for some domains only.
    pub fn is_split(&self) -> bool {
        !self.routing.is_empty() && !self.routing.iter().any(Domain::is_root)
    }

    /// The servers answer for every name.
    pub fn is_full(&self) -> bool {
        !self.servers.is_empty() && !self.is_split()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        let mut parts = Vec::new();
        if !self.servers.is_empty() {
            parts.push(format!("servers {}", list(&self.servers)));
        }
        if !self.search.is_empty() {
            parts.push(format!("search {}", list(&self.search)));
        }
        if self.is_split() {
            parts.push(format!("only for {}", list(self.search.iter().chain(&self.routing))));
        } else if self.is_full() {
            parts.push("for every name".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

/// The items, separated by commas.
fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// What resolves names on this machine and takes the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// systemd-resolved, over D-Bus.
    Resolved,
    /// resolvconf(8): openresolv, or Debian's.
    Resolvconf,
    /// The file /etc/resolv.conf itself.
    File,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolved => "systemd-resolved",
            Self::Resolvconf => "resolvconf",
            Self::File => "/etc/resolv.conf",
        })
    }
}

/// How to find the [`Method`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// systemd-resolved where names are looked up through it, else resolvconf where it is installed, else the file.
    #[default]
    Auto,
    /// systemd-resolved, over D-Bus.
    Resolved,
    /// resolvconf(8).
    Resolvconf,
    /// The file /etc/resolv.conf itself.
    File,
}

/// Where things are on this machine. Tests have them elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Read by the C library.
    pub resolv_conf: PathBuf,
    /// Says whether the C library asks systemd-resolved itself.
    pub nsswitch: PathBuf,
    /// Has what /etc/resolv.conf was, in files that outlive a crash and a restart of the machine.
    pub state: PathBuf,
    /// Names the prefix for interfaces like ours where Debian's resolvconf is used.
    pub interface_order: PathBuf,
    /// Searched for resolvconf.
    pub programs: Vec<PathBuf>,
    /// The D-Bus address of the system bus; `None`: the usual one.
    pub bus: Option<String>,
}

impl Default for Places {
    fn default() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // The PATH of a service or of an ordinary user may lack these.
        let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"];
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            nsswitch: "/etc/nsswitch.conf".into(),
            state: "/var/lib/weft/dns".into(),
            interface_order: "/etc/resolvconf/interface-order".into(),
            programs: std::env::split_paths(&path).chain(usual.map(PathBuf::from)).collect(),
            bus: None,
        }
    }
}

/// What was applied for an interface: enough to undo it from another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What took the settings.
    pub method: Method,
    /// The system's number of the interface.
    pub index: u32,
    /// What was wanted.
    pub settings: Settings,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (by {})", self.settings, self.method)
    }
}

/// The machine's resolver.
#[derive(Clone, Debug, Default)]
pub struct System {
    places: Places,
}

impl System {
    /// The resolver of a machine that has things in these places.
    pub fn new(places: Places) -> Self {
        Self { places }
    }

    /// What takes settings here. Asks the system bus, and starts systemd-resolved if names are looked up through it.
    ///
    /// # Errors
    /// The method that was asked for cannot work here, or there is none on this platform.
    pub fn method(&self, choice: Choice) -> Result<Method, DnsError> {
        platform::method(&self.places, choice)
    }

    /// Gives the interface its settings, in place of those that it may have had by the same method. A failure
    /// leaves nothing of them behind.
    pub fn apply(&self, method: Method, link: &Link, settings: &Settings) -> Result<Applied, DnsError> {
        let record = Record { method, index: link.index, settings: settings.clone() };
        if !settings.is_empty() {
            platform::apply(&self.places, &link.name, &record)?;
        }
        let record = Some(record).filter(|record| !record.settings.is_empty());
        Ok(Applied { system: self.clone(), interface: link.name.clone(), record })
    }

    /// Undoes what a process recorded that could not do it itself. What is gone already is no error.
    pub fn undo_recorded(&self, interface: &InterfaceName, record: &Record) -> Result<(), DnsError> {
        platform::undo(&self.places, interface.as_str(), record)
    }

    /// Takes from /etc/resolv.conf what daemons left there that do not run any more, and says for which interfaces.
    /// To be called at every start, also of an interface without settings; without such leftovers it does nothing.
    pub fn repair(&self) -> Result<Vec<String>, DnsError> {
        platform::repair(&self.places)
    }
}

/// [`System::undo_recorded`] for this machine.
pub fn undo_recorded(interface: &InterfaceName, record: &Record) -> Result<(), DnsError> {
    System::default().undo_recorded(interface, record)
}

/// Settings that are in force. Dropping it changes nothing: call [`Self::undo`].
#[derive(Debug)]
pub struct Applied {
    system: System,
    interface: String,
    record: Option<Record>,
}

impl Applied {
    /// What to keep for [`undo_recorded`]; `None`: nothing is in force.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Takes the settings away. A second call does nothing; after a failure it tries again.
    pub fn undo(&mut self) -> Result<(), DnsError> {
        if let Some(record) = &self.record {
            platform::undo(&self.system.places, &self.interface, record)?;
        }
        self.record = None;
        Ok(())
    }

    /// Changes the settings of `link`, the interface that they were applied to. A failure puts the old ones back.
    pub fn change(&mut self, method: Method, link: &Link, settings: &Settings) -> Result<(), DnsError> {
        let wanted = Record { method, index: link.index, settings: settings.clone() };
        if self.record.as_ref().map_or(settings.is_empty(), |record| *record == wanted) {
            return Ok(());
        }
        let old = self.record.clone();
        if settings.is_empty() || old.as_ref().is_some_and(|old| old.method != method) {
            self.undo()?;
        }
        match self.system.apply(method, link, settings) {
            Ok(applied) => *self = applied,
            Err(error) => {
                if let Some(old) = old {
                    match platform::apply(&self.system.places, &self.interface, &old) {
                        Ok(()) => self.record = Some(old),
                        Err(again) => {
                            self.record = None;
                            tracing::warn!(
                                interface = self.interface,
                                "cannot put DNS back as it was: {again}"
                            );
                        }
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domains(names: &[&str]) -> Vec<Domain> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_routing_domain_splits_unless_it_is_the_root() {
        let servers = vec!["10.0.0.1".parse().unwrap()];
        let full = Settings { servers, search: domains(&["a.example"]), routing: vec![] };
        assert!(full.is_full() && !full.is_split());
        let split = Settings { routing: domains(&["corp.example"]), ..full.clone() };
        assert!(split.is_split() && !split.is_full());
        let root = Settings { routing: domains(&["corp.example", "."]), ..full.clone() };
        assert!(root.is_full() && !root.is_split());
        let search = Settings { servers: vec![], ..full };
        assert!(!search.is_full() && !search.is_split() && !search.is_empty());
    }

    #[test]
    fn settings_read_as_a_sentence() {
        let mut settings = Settings {
            servers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            search: domains(&["a.example"]),
            routing: vec![],
        };
        assert_eq!(settings.to_string(), "servers 10.0.0.1, fd00::1; search a.example; for every name");
        settings.routing = domains(&["corp.example"]);
        assert_eq!(
            settings.to_string(),
            "servers 10.0.0.1, fd00::1; search a.example; only for a.example, corp.example"
        );
        assert_eq!(Settings::default().to_string(), "nothing");
    }

    #[test]
    fn a_record_survives_the_state_file() {
        let record = Record {
            method: Method::Resolved,
            index: 7,
            settings: Settings {
                servers: vec!["fd00::1".parse().unwrap()],
                search: vec![],
                routing: domains(&["."]),
            },
        };
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains("\"method\":\"resolved\""), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
