//! The servers and the search list of the adapter, for IPv4 and IPv6. What the adapter had before is kept
//! beside them.

use std::io;

use weft_config::Dns;
use weft_tun::guid_of;

use super::super::DnsError;
use super::{OWNER, Table, Value, ValueChange, braced};
use crate::routes::Family;

/// The keys that have a key for each adapter: of IPv4, and of IPv6.
pub(super) const PARENTS: [&str; 2] = [
    r"SYSTEM\CurrentControlSet\Services\Tcpip\Parameters\Interfaces",
    r"SYSTEM\CurrentControlSet\Services\Tcpip6\Parameters\Interfaces",
];
/// Keys with a search list that replaces the list of the adapter.
const STRONGER: [&str; 2] = [
    r"SOFTWARE\Policies\Microsoft\Windows NT\DNSClient",
    r"SYSTEM\CurrentControlSet\Services\Tcpip\Parameters",
];
/// The values that are set, and the values that keep what was there before.
const VALUES: [(&str, &str); 2] = [(SERVERS, "WeftFormerNameServer"), (SEARCH, "WeftFormerSearchList")];
const SERVERS: &str = "NameServer";
const SEARCH: &str = "SearchList";

/// The keys of an adapter.
pub(super) struct Adapters {
    guid: String,
    keys: Vec<AdapterKey>,
}

/// The key of an adapter for one family, which exists.
struct AdapterKey {
    family: Family,
    key: String,
    values: Vec<Setting>,
    has_owner: bool,
}

/// A value that is set, or may be.
struct Setting {
    name: &'static str,
    former_name: &'static str,
    now: Option<Value>,
    /// What was there before it was set; `None` if it was not set.
    former: Option<Value>,
}

impl Adapters {
    pub(super) fn read(table: &impl Table, interface: &str) -> io::Result<Self> {
        let guid = guid_of_adapter(interface);
        let mut keys = Vec::new();
        for (family, parent) in Family::ALL.into_iter().zip(PARENTS) {
            let key = format!(r"{parent}\{guid}");
            if table.keys(&key)?.is_none() {
                continue;
            }
            let mut values = Vec::new();
            for (name, former_name) in VALUES {
                let (now, former) = (table.value(&key, name)?, table.value(&key, former_name)?);
                values.push(Setting { name, former_name, now, former });
            }
            let has_owner = table.value(&key, OWNER)?.is_some();
            keys.push(AdapterKey { family, key, values, has_owner });
        }
        Ok(Self { guid, keys })
    }

    /// Fails if the adapter cannot have its settings, and warns of those that have no effect.
    pub(super) fn check(&self, table: &impl Table, interface: &str, settings: &Dns) -> Result<(), DnsError> {
        let wants = |family| wanted(settings, family, SERVERS).is_some();
        let search = wanted(settings, Family::V4, SEARCH);
        if self.keys.is_empty() && (search.is_some() || Family::ALL.into_iter().any(wants)) {
            return Err(DnsError::NoAdapter { interface: interface.to_owned(), guid: self.guid.clone() });
        }
        for family in Family::ALL {
            if wants(family) && !self.keys.iter().any(|key| key.family == family) {
                tracing::warn!(
                    interface,
                    ?family,
                    "the adapter does not have this family, and not its DNS servers"
                );
            }
        }
        let has_list =
            |key: &&str| table.value(key, SEARCH).ok().flatten().is_some_and(|list| !is_empty(&list));
        if let (Some(search), Some(key)) = (search, STRONGER.into_iter().find(has_list)) {
            tracing::warn!(
                interface,
                r"the search list of this machine (SearchList of HKLM\{key}) is in the place of the tunnel's, {search}"
            );
        }
        Ok(())
    }

    pub(super) fn changes_to(&self, settings: &Dns, owner: &str) -> Vec<ValueChange> {
        self.keys.iter().flat_map(|key| key.changes_to(settings, owner)).collect()
    }

    pub(super) fn undoing(&self) -> Vec<Vec<ValueChange>> {
        self.keys.iter().map(AdapterKey::undoing).filter(|changes| !changes.is_empty()).collect()
    }
}

impl AdapterKey {
    fn changes_to(&self, settings: &Dns, owner: &str) -> Vec<ValueChange> {
        let mut changes = Vec::new();
        for setting in &self.values {
            let Some(text) = wanted(settings, self.family, setting.name) else {
                changes.extend(setting.undoing(&self.key));
                continue;
            };
            if changes.is_empty() {
                changes.push(ValueChange::set(&self.key, OWNER, Value::Text(owner.to_owned())));
            }
            if setting.former.is_none() {
                let former = setting.now.clone().unwrap_or(Value::Text(String::new()));
                changes.push(ValueChange::set(&self.key, setting.former_name, former));
            }
            changes.push(ValueChange::set(&self.key, setting.name, Value::Text(text)));
        }
        changes
    }

    fn undoing(&self) -> Vec<ValueChange> {
        let mut changes: Vec<ValueChange> =
            self.values.iter().flat_map(|setting| setting.undoing(&self.key)).collect();
        if self.has_owner {
            changes.push(ValueChange::unset(&self.key, OWNER));
        }
        changes
    }
}

impl Setting {
    /// Restores what was there. What was there is forgotten last.
    fn undoing(&self, key: &str) -> Vec<ValueChange> {
        let Some(former) = &self.former else { return Vec::new() };
        let restored = match is_empty(former) {
            true => ValueChange::unset(key, self.name),
            false => ValueChange::set(key, self.name, former.clone()),
        };
        vec![restored, ValueChange::unset(key, self.former_name)]
    }
}

pub(super) fn guid_of_adapter(interface: &str) -> String {
    braced(guid_of("adapter", interface))
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Text(text) if text.is_empty())
}

/// Returns what a value is to be; `None` if it is to be as it was. Servers for some domains alone are not the
/// adapter's: Windows would ask them for every name.
fn wanted(settings: &Dns, family: Family, name: &str) -> Option<String> {
    let text = match name {
        SEARCH => settings.search.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        _ if settings.is_split() => String::new(),
        _ => {
            let servers = settings.servers.iter().filter(|server| server.is_ipv4() == (family == Family::V4));
            servers.map(ToString::to_string).collect::<Vec<_>>().join(",")
        }
    };
    Some(text).filter(|text| !text.is_empty())
}
