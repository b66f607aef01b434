//! Rules of the name resolution policy table (NRPT, \[MS-GPNRPT\]): for which names the servers of the tunnel
//! are asked, and no others.

use std::io;

use weft_config::Dns;
use weft_tun::guid_of;

use super::super::DnsError;
use super::{OWNER, Table, Value, ValueChange, braced};

/// The table of this machine, and that of Group Policy. Where the latter exists, even if it is empty, Windows
/// reads no other.
pub(super) const TABLES: [&str; 2] = [
    r"SYSTEM\CurrentControlSet\Services\Dnscache\Parameters\DnsPolicyConfig",
    r"SOFTWARE\Policies\Microsoft\Windows NT\DNSClient\DnsPolicyConfig",
];
/// The number of names that Windows has been seen to accept in one rule.
const NAMES_OF_RULE: usize = 50;
/// Every name.
const EVERY: &str = ".";
/// A rule of this version has servers and nothing else.
const VERSION: u32 = 1;
const ONLY_SERVERS: u32 = 8;
const NAME: &str = "Name";

/// The rules in both tables.
pub(super) struct Rules {
    interface: String,
    tables: Vec<RuleTable>,
}

struct RuleTable {
    path: &'static str,
    exists: bool,
    rules: Vec<String>,
}

impl Rules {
    pub(super) fn read(table: &impl Table, interface: &str) -> io::Result<Self> {
        let [local, policy] = TABLES;
        let rules = table.keys(local)?;
        let mut tables =
            vec![RuleTable { path: local, exists: rules.is_some(), rules: rules.unwrap_or_default() }];
        tables.extend(table.keys(policy)?.map(|rules| RuleTable { path: policy, exists: true, rules }));
        Ok(Self { interface: interface.to_owned(), tables })
    }

    /// Reports whether Group Policy has a table.
    pub(super) fn has_policy(&self) -> bool {
        self.tables.len() > 1
    }

    /// Fails if a rule of someone else is for one of the domains. Several rules may be for every name: those
    /// of other tunnels, say.
    pub(super) fn check(&self, table: &impl Table, settings: &Dns) -> Result<(), DnsError> {
        let wanted = names(settings);
        // The last one is that which Windows reads.
        let Some(in_use) = self.tables.last() else { return Ok(()) };
        for rule in in_use.rules.iter().filter(|rule| !self.is_own(rule)) {
            let theirs = table.value(&format!(r"{}\{rule}", in_use.path), NAME).ok().flatten();
            let Some(Value::List(theirs)) = theirs else { continue };
            let is_theirs = |name: &&String| theirs.iter().any(|other| other.eq_ignore_ascii_case(name));
            match wanted.iter().find(is_theirs) {
                None => {}
                Some(name) if name == EVERY => tracing::warn!(
                    interface = self.interface,
                    "the NRPT rule {rule} is for every name too, and not this interface's: Windows may ask its servers"
                ),
                Some(name) => {
                    return Err(DnsError::RuleExists { rule: rule.clone(), name: name[1..].to_owned() });
                }
            }
        }
        Ok(())
    }

    pub(super) fn changes_to(&self, settings: &Dns, owner: &str) -> Vec<ValueChange> {
        let names = names(settings);
        let servers: Vec<_> = settings.servers.iter().map(ToString::to_string).collect();
        let mut changes = self.removing(names.chunks(NAMES_OF_RULE).count());
        for table in &self.tables {
            if !table.exists && !names.is_empty() {
                // Others could make no rule that lasts below a key that does not.
                changes.push(ValueChange::Create { key: table.path.to_owned(), lasts: true });
            }
            for (number, names) in names.chunks(NAMES_OF_RULE).enumerate() {
                let key = format!(r"{}\{}", table.path, key_of(&self.interface, number));
                let text = |text: String| Value::Text(text);
                changes.extend([
                    // A rule of a tunnel that is no more would leave the machine without names.
                    ValueChange::Create { key: key.clone(), lasts: false },
                    ValueChange::set(&key, OWNER, text(owner.to_owned())),
                    ValueChange::set(&key, "DisplayName", text(format!("weft {}", self.interface))),
                    ValueChange::set(&key, NAME, Value::List(names.to_vec())),
                    ValueChange::set(&key, "GenericDNSServers", text(servers.join("; "))),
                    ValueChange::set(&key, "Version", Value::Number(VERSION)),
                    // Without it, the rule does nothing.
                    ValueChange::set(&key, "ConfigOptions", Value::Number(ONLY_SERVERS)),
                ]);
            }
        }
        changes
    }

    pub(super) fn undoing(&self) -> Vec<Vec<ValueChange>> {
        self.removing(0).into_iter().map(|change| vec![change]).collect()
    }

    /// Removes the rules of the interface, but for the first ones.
    fn removing(&self, stay: usize) -> Vec<ValueChange> {
        let staying: Vec<String> = (0..stay).map(|number| key_of(&self.interface, number)).collect();
        let mut changes = Vec::new();
        for table in &self.tables {
            let own = table.rules.iter().filter(|rule| self.is_own(rule));
            let surplus = own.filter(|rule| !staying.iter().any(|key| key.eq_ignore_ascii_case(rule)));
            changes
                .extend(surplus.map(|rule| ValueChange::Remove { key: format!(r"{}\{rule}", table.path) }));
        }
        changes
    }

    fn is_own(&self, rule: &str) -> bool {
        let own = key_of(&self.interface, 0);
        // All but the number at the end.
        let places = own.len() - NUMBER_DIGITS - 1;
        rule.len() == own.len()
            && rule.get(..places).is_some_and(|start| start.eq_ignore_ascii_case(&own[..places]))
    }
}

/// The hexadecimal digits of a rule's number in its GUID.
const NUMBER_DIGITS: usize = 4;

/// Returns the name of a rule, which another process finds by it.
fn key_of(interface: &str, number: usize) -> String {
    let numbers = (1 << (4 * NUMBER_DIGITS)) - 1;
    braced(guid_of("DNS rule", interface) & !numbers | number as u128 & numbers)
}

/// Returns the names for which the servers are asked, as a rule has them: with a dot before each domain.
fn names(settings: &Dns) -> Vec<String> {
    if settings.servers.is_empty() {
        return Vec::new();
    }
    if !settings.is_split() {
        return vec![EVERY.to_owned()];
    }
    let mut names: Vec<String> =
        settings.search.iter().chain(&settings.routing).map(|domain| format!(".{domain}")).collect();
    names.sort();
    names.dedup();
    names
}
