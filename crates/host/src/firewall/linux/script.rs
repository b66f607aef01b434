//! Writes a transaction of nftables as nft(8) reads it: what is removed, and what is added in its place. An
//! nft may be built without its JSON interface, but each one reads text.

use std::fmt::{Display, Write as _};

use super::super::{Family, Table};

/// A base chain: where packets enter it, its priority (lower ones come first; names of priorities are newer
/// than 0.9.0), and the policy for packets that reach its end.
#[derive(Clone, Copy)]
pub(super) struct ChainHook {
    pub(super) hook: &'static str,
    pub(super) priority: i32,
    pub(super) policy: &'static str,
}

/// The commands of one transaction, a line each.
#[derive(Debug, Default)]
pub(super) struct Script(String);

impl Script {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }

    /// Removes a table whether or not it exists, by adding it first. `destroy` does the same, but nft has it
    /// only since 1.0.7.
    pub(super) fn clear(&mut self, table: &Table) {
        self.table(table);
        self.line(format_args!("delete table {table}"));
    }

    pub(super) fn table(&mut self, table: &Table) {
        self.line(format_args!("add table {table}"));
    }

    /// Adds a base chain, which packets enter from a hook.
    pub(super) fn base_chain(&mut self, table: &Table, name: &str, place: ChainHook) {
        let ChainHook { hook, priority, policy } = place;
        let place = format_args!("type filter hook {hook} priority {priority}; policy {policy};");
        self.line(format_args!("add chain {table} {name} {{ {place} }}"));
    }

    /// Adds a chain that other chains jump to.
    pub(super) fn chain(&mut self, table: &Table, name: &str) {
        self.line(format_args!("add chain {table} {name}"));
    }

    /// Adds a rule at the end of a chain.
    pub(super) fn rule(&mut self, table: &Table, chain: &str, comment: &str, statements: impl Display) {
        self.line(format_args!("add rule {table} {chain} {statements} comment \"{comment}\""));
    }

    fn line(&mut self, command: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{command}");
    }
}

/// Returns a set, which any of these items matches.
pub(super) fn any_of(items: impl IntoIterator<Item: Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("{{ {} }}", items.join(", "))
}

/// Returns the name of the header that contains an address of this family.
pub(super) fn header_of(is_ipv6: bool) -> &'static str {
    if is_ipv6 { Family::Ip6.as_str() } else { Family::Ip.as_str() }
}
