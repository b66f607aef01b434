//! Sets DNS in the registry of Windows: the servers and the search list of the adapter (`adapter.rs`), and
//! rules of the name resolution policy table, which select the name servers of a name (`rules.rs`).
//!
//! What is changed is decided from what the registry has, so that each call can be repeated, and so that any
//! process can undo what another has done a part of: `system.rs` makes the changes.

use std::io;

use weft_config::{Dns, InterfaceName};

use super::DnsError;
use crate::platform::Process;
use adapter::Adapters;
use rules::Rules;

mod adapter;
mod rules;
#[cfg(windows)]
mod system;

#[cfg(windows)]
pub(super) use system::System;

/// The value of a key that names the interface and the process which have changed the key.
const OWNER: &str = "WeftOwner";

/// What a key has by a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    List(Vec<String>),
    Number(u32),
}

impl Value {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(_) | Self::Number(_) => None,
        }
    }
}

/// A change of the registry, below HKEY_LOCAL_MACHINE. It is no error to make it twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueChange {
    /// Creates a key below one that exists. `lasts`: it is still there when the machine has restarted.
    Create { key: String, lasts: bool },
    /// Sets a value of a key, which exists.
    Set { key: String, name: &'static str, value: Value },
    /// Removes a value of a key.
    Unset { key: String, name: &'static str },
    /// Removes a key.
    Remove { key: String },
}

impl ValueChange {
    fn set(key: &str, name: &'static str, value: Value) -> Self {
        Self::Set { key: key.to_owned(), name, value }
    }

    fn unset(key: &str, name: &'static str) -> Self {
        Self::Unset { key: key.to_owned(), name }
    }

    /// Says what it does, as a verb with its object.
    fn action(&self) -> String {
        match self {
            Self::Create { key, .. } => format!(r"create HKLM\{key}"),
            Self::Set { key, name, .. } => format!(r"set {name} of HKLM\{key}"),
            Self::Unset { key, name } => format!(r"remove {name} of HKLM\{key}"),
            Self::Remove { key } => format!(r"remove HKLM\{key}"),
        }
    }
}

/// The registry, and the DNS client that reads it.
pub(super) trait Table {
    /// Returns the names of the keys below a key; `None` if there is no such key.
    fn keys(&self, key: &str) -> io::Result<Option<Vec<String>>>;

    /// Returns a value; `None` if there is no such value, or no such key.
    fn value(&self, key: &str, name: &str) -> io::Result<Option<Value>>;

    /// Makes a change.
    fn make(&self, change: &ValueChange) -> io::Result<()>;

    /// Has the DNS client read its settings again and forget its answers. `with_policy`: also those of Group
    /// Policy.
    fn announce(&self, with_policy: bool) -> io::Result<()>;
}

/// What the registry has for an interface.
struct Found {
    adapters: Adapters,
    rules: Rules,
}

impl Found {
    fn read(table: &impl Table, interface: &str) -> Result<Self, DnsError> {
        let read = || {
            Ok(Self { adapters: Adapters::read(table, interface)?, rules: Rules::read(table, interface)? })
        };
        read().map_err(|error| refused(format!("read the DNS settings of {interface}"), error))
    }

    /// Returns the changes that bring the settings in force, in place of earlier ones.
    fn changes_to(&self, settings: &Dns, owner: &str) -> Vec<ValueChange> {
        let mut changes = self.adapters.changes_to(settings, owner);
        changes.extend(self.rules.changes_to(settings, owner));
        changes
    }

    /// Returns the changes that undo those of [`Self::changes_to`], for each key by itself. The rules are
    /// first: they reach beyond the adapter.
    fn undoing(&self) -> Vec<Vec<ValueChange>> {
        let mut changes = self.rules.undoing();
        changes.extend(self.adapters.undoing());
        changes
    }
}

/// Applies the settings, in place of earlier ones. A failure leaves none of them in force.
pub(super) fn add(
    table: &impl Table,
    interface: &str,
    process: Process,
    settings: &Dns,
) -> Result<(), DnsError> {
    if settings.servers.is_empty() && !settings.routing.is_empty() {
        tracing::warn!(interface, "there are no DNS servers that could be asked for the routing domains");
    }
    let found = Found::read(table, interface)?;
    // Nothing is changed if a domain belongs to someone else.
    found.adapters.check(table, interface, settings)?;
    found.rules.check(table, settings)?;
    let owner = format!("{interface} {} {}", process.id, process.started);
    let changes = found.changes_to(settings, &owner);
    let added = changes.iter().try_for_each(|change| make(table, change));
    match &added {
        Ok(()) => announce(table, &found.rules),
        Err(_) => {
            if let Err(error) = remove(table, interface) {
                tracing::warn!("while taking back DNS settings that failed: {error}");
            }
        }
    }
    added
}

/// Removes the settings, and goes on with the next key after a failure. It is no error if there are none.
pub(super) fn remove(table: &impl Table, interface: &str) -> Result<(), DnsError> {
    let found = Found::read(table, interface)?;
    let keys = found.undoing();
    if keys.is_empty() {
        return Ok(());
    }
    let mut removed = Ok(());
    for changes in keys {
        // What was there before is forgotten only when it is back.
        removed = removed.and(changes.iter().try_for_each(|change| make(table, change)));
    }
    announce(table, &found.rules);
    removed
}

/// Removes the settings of all interfaces without a running process. Returns the interfaces.
pub(super) fn repair(
    table: &impl Table,
    is_alive: impl Fn(Process) -> bool,
) -> Result<Vec<String>, DnsError> {
    let owners = || -> io::Result<Vec<String>> {
        let mut owners = Vec::new();
        for parent in rules::TABLES.into_iter().chain(adapter::PARENTS) {
            for key in table.keys(parent)?.unwrap_or_default() {
                owners.extend(table.value(&format!(r"{parent}\{key}"), OWNER)?.and_then(Value::text));
            }
        }
        Ok(owners)
    };
    let owners =
        owners().map_err(|error| refused("look for DNS settings that were left".to_owned(), error))?;
    let mut left: Vec<String> = owners
        .iter()
        .filter_map(|owner| read_owner(owner))
        .filter(|(_, process)| !is_alive(*process))
        .map(|(interface, _)| interface.to_string())
        .collect();
    left.sort();
    left.dedup();
    left.iter().try_for_each(|interface| remove(table, interface))?;
    Ok(left)
}

fn read_owner(owner: &str) -> Option<(InterfaceName, Process)> {
    let mut words = owner.split(' ');
    let interface = words.next()?.parse().ok()?;
    Some((interface, Process { id: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? }))
}

fn make(table: &impl Table, change: &ValueChange) -> Result<(), DnsError> {
    table.make(change).map_err(|error| refused(change.action(), error))
}

/// Announces changes that were made. The DNS client also looks at the registry by itself, later.
fn announce(table: &impl Table, rules: &Rules) {
    if let Err(error) = table.announce(rules.has_policy()) {
        tracing::warn!("cannot tell the DNS client of Windows that its settings have changed: {error}");
    }
}

fn refused(action: String, error: io::Error) -> DnsError {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run weft as an administrator",
        _ => "",
    };
    DnsError::Registry { action, error, advice }
}

/// Returns a GUID as the registry writes it.
fn braced(guid: u128) -> String {
    let hex = format!("{guid:032X}");
    format!("{{{}-{}-{}-{}-{}}}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
