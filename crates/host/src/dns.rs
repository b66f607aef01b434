//! Passes the DNS servers and domains of an interface to the resolver of this machine.
//!
//! To be called on a control thread only, and not from within a tokio runtime: every call waits, for half a
//! minute at most. What was applied is a [`Record`], which a later process can undo after a crash.
//!
//! Servers without a routing domain answer for every name, exclusively: this is what `DNS =` means to
//! wg-quick, which makes the interface exclusive in resolvconf (`-x`; for systemd-resolved the domain `~.`).
//! With a routing domain (`~corp.example`) the servers answer only for it and for the search domains: split
//! DNS.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use weft_config::{Dns, InterfaceName};

use crate::routes::Link;

mod error;
#[cfg(target_os = "freebsd")]
#[path = "dns/freebsd.rs"]
mod platform;
#[cfg(target_os = "linux")]
#[path = "dns/linux.rs"]
mod platform;
#[cfg(target_os = "macos")]
#[path = "dns/macos.rs"]
mod platform;
#[cfg(windows)]
#[path = "dns/windows.rs"]
mod platform;
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
mod program;
#[cfg(any(test, windows))]
mod registry;
#[cfg(any(all(test, unix), target_os = "macos"))]
mod scutil;

#[cfg(target_os = "linux")]
mod upstream;

pub use error::DnsError;
#[cfg(target_os = "linux")]
pub use upstream::Upstream;

/// Says what the settings do.
fn effect(settings: &Dns) -> String {
    if settings.is_empty() {
        return "nothing".to_owned();
    }
    let mut parts = Vec::new();
    if !settings.servers.is_empty() {
        parts.push(format!("servers {}", list(&settings.servers)));
    }
    if !settings.search.is_empty() {
        parts.push(format!("search {}", list(&settings.search)));
    }
    if settings.is_split() {
        parts.push(format!("only for {}", list(settings.search.iter().chain(&settings.routing))));
    } else if settings.is_full() {
        parts.push("for every name".to_owned());
    }
    parts.join("; ")
}

/// Joins the items with commas.
fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// The part of the system that resolves names and accepts the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// systemd-resolved, over D-Bus.
    Resolved,
    /// resolvconf(8): openresolv, or Debian's.
    Resolvconf,
    /// The file /etc/resolv.conf itself.
    File,
    /// scutil(8) of macOS.
    Scutil,
    /// The registry of Windows.
    Registry,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolved => "systemd-resolved",
            Self::Resolvconf => "resolvconf",
            Self::File => "/etc/resolv.conf",
            Self::Scutil => "scutil",
            Self::Registry => "the registry",
        })
    }
}

/// How to choose the [`Method`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// systemd-resolved where names are looked up through it, else resolvconf where it is installed, else the
    /// file.
    #[default]
    Auto,
    /// systemd-resolved, over D-Bus.
    Resolved,
    Resolvconf,
    /// The file /etc/resolv.conf itself.
    File,
}

/// The paths that DNS settings depend on. Tests use other paths.
#[derive(Clone, Debug)]
pub struct Places {
    /// The file that the C library reads.
    pub resolv_conf: PathBuf,
    /// The files that were found to be mounted there: a mount may disappear, or come later.
    pub bound: Arc<Mutex<Vec<Arc<File>>>>,
    /// The file that says whether the C library queries systemd-resolved directly.
    pub nsswitch: PathBuf,
    /// The directory with the former content of each /etc/resolv.conf, in files that survive a crash and a
    /// reboot of the machine, or where only /run is writable a crash.
    pub state: PathBuf,
    /// The file of Debian's resolvconf that names the prefix for tunnel interfaces.
    pub interface_order: PathBuf,
    /// The directory of resolvconf with the entries of all interfaces.
    pub resolvconf: PathBuf,
    /// The file in which NetworkManager names its servers if it runs a resolver on this machine.
    pub no_stub: PathBuf,
    /// The directory of macOS with a file for each domain that has separate servers (resolver(5)).
    pub resolvers: PathBuf,
    /// The directories that are searched for resolvconf and scutil.
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
            bound: Arc::default(),
            nsswitch: "/etc/nsswitch.conf".into(),
            state: platform::state_directory("/var/lib/weft/dns", "/run/weft-dns").into(),
            interface_order: "/etc/resolvconf/interface-order".into(),
            resolvconf: if cfg!(target_os = "freebsd") { "/var/run/resolvconf" } else { "/run/resolvconf" }
                .into(),
            no_stub: "/run/NetworkManager/no-stub-resolv.conf".into(),
            resolvers: "/etc/resolver".into(),
            programs: std::env::split_paths(&path).chain(usual.map(PathBuf::from)).collect(),
            bus: None,
        }
    }
}

/// The settings that were applied to an interface, in a form from which another process can undo them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The method by which the settings were applied.
    pub method: Method,
    /// The interface index.
    pub index: u32,
    /// The settings that were applied.
    pub settings: Dns,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (by {})", effect(&self.settings), self.method)
    }
}

/// What became of settings that were applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// They are in force, as far as that can be seen.
    InForce,
    /// Another program has replaced them: by what.
    Replaced(String),
    /// They are set, and names are looked up elsewhere all the same.
    Overruled(Overruled),
}

/// What another program, or a person, puts before the settings of an interface. It may be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overruled {
    /// What it is, as a sentence.
    pub by: String,
    /// What to do.
    pub advice: String,
}

/// The machine's resolver.
#[derive(Clone, Debug, Default)]
pub struct System {
    places: Places,
}

impl System {
    /// Makes a resolver that uses these paths.
    pub fn new(places: Places) -> Self {
        Self { places }
    }

    /// Returns the method that sets DNS on this machine. Queries the system bus, and starts systemd-resolved
    /// if names are looked up through it.
    ///
    /// # Errors
    /// The chosen method cannot work here, or there is none on this platform.
    pub fn method(&self, choice: Choice) -> Result<Method, DnsError> {
        platform::method(&self.places, choice)
    }

    /// Returns the method that sets DNS as the machine is now. Starts nothing.
    #[cfg(target_os = "linux")]
    pub fn present_method(&self) -> Method {
        platform::present_method(&self.places)
    }

    /// Applies the settings to the interface, in place of earlier settings by the same method. A failure
    /// leaves none of the settings in force.
    pub fn apply(&self, method: Method, link: &Link, settings: &Dns) -> Result<Applied, DnsError> {
        let record = Record { method, index: link.index, settings: settings.clone() };
        if !settings.is_empty() {
            platform::apply(&self.places, &link.name, &record)?;
        }
        let record = Some(record).filter(|record| !record.settings.is_empty());
        Ok(Applied { system: self.clone(), interface: link.name.clone(), record })
    }

    /// Undoes what a process recorded but could not undo itself. It is no error if the settings are gone
    /// already.
    pub fn undo_recorded(&self, interface: &InterfaceName, record: &Record) -> Result<(), DnsError> {
        platform::undo(&self.places, interface.as_str(), record)
    }

    /// Looks whether settings are still in force that were applied to an interface. Starts nothing.
    pub fn look(&self, interface: &InterfaceName, record: &Record) -> Result<Seen, DnsError> {
        platform::look(&self.places, interface.as_str(), record)
    }

    /// Finds out what will become of settings if they are applied to an interface of this name: `Some` if
    /// something will come before them. Changes and starts nothing.
    ///
    /// # Errors
    /// They cannot be applied.
    #[cfg(target_os = "linux")]
    pub fn foresee(&self, interface: &InterfaceName, settings: &Dns) -> Result<Option<Overruled>, DnsError> {
        platform::foresee(&self.places, interface.as_str(), settings)
    }

    /// Returns the servers that this machine asks for a name without the settings of an interface, which has
    /// this index if it is there: those from before, or those that other links got since. No server: there is
    /// none, or it cannot be found out, which is logged.
    #[cfg(target_os = "linux")]
    pub fn upstream(&self, interface: &str, index: Option<u32>, name: &str) -> Upstream {
        platform::upstream(&self.places, interface, index, name)
    }

    /// Returns a record of what resolvconf has of an interface, if it has something.
    pub fn unrecorded(&self, interface: &InterfaceName) -> Option<Record> {
        platform::unrecorded(&self.places, interface.as_str())
    }

    /// Removes from /etc/resolv.conf, or from the registry of Windows, what daemons that have ended left
    /// there. Returns the names of their interfaces. To be called at every start, also of an interface
    /// without settings; without such leftovers it does nothing.
    pub fn repair(&self) -> Result<Vec<String>, DnsError> {
        platform::repair(&self.places)
    }
}

/// Dns that are in force. Dropping it changes nothing: call [`Self::undo`].
#[derive(Debug)]
pub struct Applied {
    system: System,
    interface: String,
    record: Option<Record>,
}

impl Applied {
    /// Returns the record for [`System::undo_recorded`]; `None`: nothing is in force.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Undoes the settings. A second call does nothing after a success, and tries again after a failure.
    pub fn undo(&mut self) -> Result<(), DnsError> {
        if let Some(record) = &self.record {
            platform::undo(&self.system.places, &self.interface, record)?;
        }
        self.record = None;
        Ok(())
    }

    /// Changes the settings of `link`, the interface that they were applied to. A failure restores the old
    /// settings.
    pub fn change(&mut self, method: Method, link: &Link, settings: &Dns) -> Result<(), DnsError> {
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
    use weft_config::Domain;

    use super::*;

    fn domains(names: &[&str]) -> Vec<Domain> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn settings_read_as_a_sentence() {
        let mut settings = Dns {
            servers: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            search: domains(&["a.example"]),
            routing: vec![],
        };
        assert_eq!(effect(&settings), "servers 10.0.0.1, fd00::1; search a.example; for every name");
        settings.routing = domains(&["corp.example"]);
        assert_eq!(
            effect(&settings),
            "servers 10.0.0.1, fd00::1; search a.example; only for a.example, corp.example"
        );
        assert_eq!(effect(&Dns::default()), "nothing");
    }

    #[test]
    fn a_record_survives_the_state_file() {
        let record = Record {
            method: Method::Resolved,
            index: 7,
            settings: Dns {
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
