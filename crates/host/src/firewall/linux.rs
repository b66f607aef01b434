//! Sets rules in nftables with nft(8), and asks the kernel which tables exist.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use weft_config::{InterfaceName, MIN_MTU_IPV6};

use crate::routes;

use super::{
    Family, FirewallError, Present, Recognises, Rules, Table, full_tunnel_table, interface_of, table_name,
};

mod full_tunnel;
mod kill_switch;
mod mss_clamp;
mod nft;
mod script;
mod table_socket;
#[cfg(test)]
mod tests;

use kill_switch::{COMMENT_OF_BLOCKED, OUTPUT};
use script::Script;
use table_socket::{Part, TableSocket};

/// The name prefix of tables with a kill switch or an MSS clamp, and the chains of which each has one at
/// least: an administrator may have a table `weft-gateway`.
const OWN_PREFIX: &str = "weft-";
const OWN_CHAINS: [&str; 2] = [kill_switch::SENT, mss_clamp::CHAIN];

/// By what rules recognise the tunnel's own packets.
pub(crate) const RECOGNISES: Recognises = Recognises::Marks;

/// How long to wait for other processes that change rules, in all and without a change; how often to look.
const PATIENCE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(5);

/// The message of nft for an expression that the kernel does not know (ENOENT).
const NOT_FOUND: &str = "No such file or directory";

/// Replaces the rules of the interface with exactly these, in one transaction: no packet sees a part of them
/// only, and a kill switch that stays is never absent.
///
/// # Errors
/// Those of [`FirewallError`]; the rules are unchanged then.
pub fn apply(rules: &Rules) -> Result<(), FirewallError> {
    let action = format!("set the firewall rules of {}", rules.interface);
    transact(&["-f", "-"], rules, &action)
}

/// Checks whether the kernel would accept these rules; nothing is changed.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn check(rules: &Rules) -> Result<(), FirewallError> {
    if rules.is_empty() {
        return Ok(());
    }
    let action = format!("check the firewall rules of {}", rules.interface);
    transact(&["-c", "-f", "-"], rules, &action)
}

/// Removes everything that [`apply`] can have set for an interface, also in an earlier run of the daemon. It
/// is no error if there is nothing.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn remove(interface: &InterfaceName) -> Result<(), FirewallError> {
    let rules = Rules::none(interface.clone());
    let found = existing(tables_of(interface), &reading(&rules))?;
    let names: Vec<String> = found.iter().map(Table::to_string).collect();
    transact(
        &["-f", "-"],
        &rules,
        &format!("delete the tables of {interface} in nftables ({})", names.join(", ")),
    )
}

/// Returns the tables in force for an interface.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn present(interface: &InterfaceName) -> Result<Present, FirewallError> {
    let tables = existing(tables_of(interface), &format!("read the firewall rules of {interface}"))?;
    let table = own_table(interface);
    let blocked = if tables.contains(&table) { blocked(&table)? } else { None };
    Ok(Present { tables, blocked })
}

/// Returns the interfaces that have a kill switch or an MSS clamp. There are none if they cannot be read.
pub fn interfaces() -> Vec<InterfaceName> {
    let tables = TableSocket::open().and_then(|mut socket| socket.tables(Family::Inet));
    let interface = |table: String| interface_of(table.strip_prefix(OWN_PREFIX)?).parse().ok();
    let interfaces = tables.unwrap_or_default().into_iter().filter_map(interface);
    interfaces.filter(|interface| is_of_others(&own_table(interface)).is_ok_and(|others| !others)).collect()
}

/// What the kernel has of the rules of an interface: the chains and rules of each table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(Vec<(Table, Vec<Part>, Vec<Part>)>);

/// Returns what the kernel has of these rules.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn contents(rules: &Rules) -> Result<Contents, FirewallError> {
    let tables = wanted_tables(rules).into_iter();
    let read = TableSocket::open().and_then(|mut socket| {
        let mut read = |table: Table| {
            let (chains, rules) = (socket.chains(&table)?, socket.rules(&table)?);
            Ok((table, chains, rules))
        };
        tables.map(&mut read).collect()
    });
    read.map(Contents).map_err(|error| unreadable(&reading(rules), error))
}

/// Returns how many rules another program has added to the tables of these rules, which may be meant; `None`
/// if not all tables exist, with the very chains and rules that `set` has.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn rules_added(rules: &Rules, set: &Contents) -> Result<Option<usize>, FirewallError> {
    let wanted = wanted_tables(rules);
    let count = wanted.len();
    let active = table_socket::active(wanted).map_err(|error| unreadable(&reading(rules), error))?;
    if active.len() < count {
        return Ok(None);
    }
    let added = TableSocket::open().and_then(|mut socket| {
        let mut added = 0;
        for (table, chains, rules) in &set.0 {
            for chain in chains {
                if socket.chain(table, &chain.name)?.as_ref() != Some(chain) {
                    return Ok(None);
                }
            }
            let found = socket.rules(table)?;
            if !rules.iter().all(|rule| found.contains(rule)) {
                return Ok(None);
            }
            added += found.len() - rules.len();
        }
        Ok(Some(added))
    });
    added.map_err(|error| unreadable(&reading(rules), error))
}

/// Returns the rules that another program has added to the tables of `set`, each as the command that adds it.
///
/// # Errors
/// Those of [`FirewallError`].
pub fn rules_of_others(set: &Contents) -> Result<Vec<String>, FirewallError> {
    let mut commands = Vec::new();
    for (table, _, rules) in &set.0 {
        let action = format!("read the firewall's table {table}");
        let found = TableSocket::open().and_then(|mut socket| socket.rules(table));
        let mut others = found.map_err(|error| unreadable(&action, error))?;
        others.retain(|rule| !rules.contains(rule));
        if !others.is_empty() {
            let listing =
                nft::run(&["-a", "list", "table", table.family.as_str(), &table.name], &[], &action)?;
            let handles: Vec<u64> = others.iter().map(|rule| rule.handle).collect();
            commands.extend(commands_of(table, &handles, &listing));
        }
    }
    Ok(commands)
}

/// Returns the families of which a rule of the packet filter gives packets another source, such as a
/// masquerade. Of the older iptables only the names of its tables are read.
///
/// # Errors
/// Those of [`FirewallError`].
pub(crate) fn translated() -> Result<BTreeSet<routes::Family>, FirewallError> {
    let listing = nft::run(&["-t", "list", "ruleset"], &[], "list the rules of the firewall")?;
    let mut found = translated_in(&listing);
    for (file, family) in [("ip_tables_names", routes::Family::V4), ("ip6_tables_names", routes::Family::V6)]
    {
        let tables = std::fs::read_to_string(format!("/proc/net/{file}")).unwrap_or_default();
        found.extend(tables.lines().any(|table| table == "nat").then_some(family));
    }
    Ok(found)
}

fn translated_in(listing: &str) -> BTreeSet<routes::Family> {
    let mut families = Vec::new();
    let mut found = BTreeSet::new();
    for line in listing.lines().map(str::trim) {
        // Rules of iptables-nft have the name of its target.
        let is_translating =
            |word: &str| matches!(word, "masquerade" | "snat" | "\"MASQUERADE\"" | "\"SNAT\"");
        if let Some(table) = line.strip_prefix("table ") {
            families = routes::Family::ALL.to_vec();
            families.retain(|family| match family {
                routes::Family::V4 => !table.starts_with("ip6 "),
                routes::Family::V6 => !table.starts_with("ip "),
            });
        } else if !line.ends_with('{') && line.split(' ').any(is_translating) {
            found.extend(&families);
        }
    }
    found
}

/// Returns the commands that add the rules with these handles, in a listing of nft.
fn commands_of(table: &Table, handles: &[u64], listing: &str) -> Vec<String> {
    let mut chain = "";
    let mut commands = Vec::new();
    for line in listing.lines() {
        let Some((text, handle)) = line.trim().rsplit_once(" # handle ") else { continue };
        if let Some(name) = text.strip_prefix("chain ").and_then(|name| name.strip_suffix(" {")) {
            chain = name;
        } else if handle.parse().is_ok_and(|handle| handles.contains(&handle)) {
            commands.push(format!("nft add rule {table} {chain} {text}"));
        }
    }
    commands
}

fn reading(rules: &Rules) -> String {
    format!("read the firewall rules of {}", rules.interface)
}

/// Returns the tables that these rules are in.
fn wanted_tables(rules: &Rules) -> Vec<Table> {
    let tables = tables_of(&rules.interface).into_iter().zip(wanted(rules));
    tables.filter_map(|(table, is_wanted)| is_wanted.then_some(table)).collect()
}

fn unreadable(action: &str, error: std::io::Error) -> FirewallError {
    let action = action.to_owned();
    match error.kind() {
        ErrorKind::PermissionDenied => FirewallError::Permission { action, advice: nft::privilege() },
        _ => FirewallError::Engine { action, call: "netlink", error },
    }
}

/// Reports whether a table with the name of an own one exists and is another program's. A kernel without
/// nftables has none.
fn is_of_others(table: &Table) -> std::io::Result<bool> {
    if !table.name.starts_with(OWN_PREFIX) || table_socket::existing([table.clone()])?.is_empty() {
        return Ok(false);
    }
    let chains = TableSocket::open()?.chains(table)?;
    let is_own = |chain: &Part| OWN_CHAINS.contains(&chain.name.as_str());
    Ok(!chains.is_empty() && !chains.iter().any(is_own))
}

/// Returns those of these tables that exist, without those of others. The kernel is asked for each by its
/// name: to list all tables, nft (1.0.6) reads every rule and every element of a set, which takes 11 s and
/// 517 MiB on a router that blocks 400,000 addresses.
fn existing(tables: impl IntoIterator<Item = Table>, action: &str) -> Result<Vec<Table>, FirewallError> {
    let existing = table_socket::existing(tables).and_then(|tables| {
        let own = |table: Table| is_of_others(&table).map(|others| (!others).then_some(table)).transpose();
        tables.into_iter().filter_map(own).collect()
    });
    existing.map_err(|error| unreadable(action, error))
}

/// Returns where the kill switch and the MSS clamp of an interface are.
pub(crate) fn own_place(interface: &InterfaceName) -> String {
    format!("nftables table {}", own_table(interface))
}

/// Returns the command that removes the kill switch of an interface without weft.
pub(crate) fn removing_command(interface: &InterfaceName) -> String {
    format!("nft delete table {}", own_table(interface))
}

/// Keeps other processes of weft in this network namespace from changing rules until the returned file is
/// dropped. When the rules change, every nft that reads or changes them begins again (1.0.6): 100 that each
/// removed a table at the same time took 41 s.
///
/// Every user can open and lock the namespace, and root and a service's user have no other file in common. So
/// the lock is waited for only while the rules change, which takes a privilege: `None` when they have stayed
/// the same for [`IDLE`].
fn alone() -> Option<File> {
    alone_while(|| TableSocket::open().and_then(|mut socket| socket.generation()).ok())
}

fn alone_while(mut generation: impl FnMut() -> Option<u64>) -> Option<File> {
    let namespace = File::open("/proc/thread-self/ns/net").ok()?;
    let start = Instant::now();
    let mut seen: Option<(Instant, Option<u64>)> = None;
    while let Err(TryLockError::WouldBlock) = namespace.try_lock() {
        if seen.is_none_or(|(since, _)| since.elapsed() > IDLE) {
            let now = generation();
            if seen.is_some_and(|(_, last)| last == now) || start.elapsed() > PATIENCE {
                return None;
            }
            seen = Some((Instant::now(), now));
        }
        std::thread::sleep(TICK);
    }
    Some(namespace)
}

/// Runs nft to replace the present rules with these.
fn transact(arguments: &[&str], rules: &Rules, action: &str) -> Result<(), FirewallError> {
    let _alone = alone();
    let unwanted = tables_of(&rules.interface).into_iter().zip(wanted(rules));
    let unwanted = unwanted.filter_map(|(table, is_wanted)| (!is_wanted).then_some(table));
    let script = script(rules, &existing(unwanted, action)?);
    for table in wanted_tables(rules) {
        if is_of_others(&table).map_err(|error| unreadable(action, error))? {
            return Err(FirewallError::Foreign { action: action.to_owned(), table: table.to_string() });
        }
    }
    if script.is_empty() {
        return Ok(());
    }
    match nft::run(arguments, &script.into_bytes(), action) {
        // The transaction creates every object that it names, so what is not found is an expression that the
        // kernel does not have.
        Err(FirewallError::Refused { action, message, .. }) if message.contains(NOT_FOUND) => {
            Err(FirewallError::Kernel { action, message })
        }
        result => result.map(drop),
    }
}

/// Returns which of [`tables_of`] the interface these rules need.
fn wanted(rules: &Rules) -> [bool; 3] {
    let full = rules.full_tunnel.as_ref();
    let has_own = rules.kill_switch.is_some() || rules.mss_clamp;
    [full.is_some_and(|full| full.ipv4), full.is_some_and(|full| full.ipv6), has_own]
}

/// Returns the transaction that replaces the present tables. It does not touch a table that is neither wanted
/// nor among `unwanted`, which exist, since the kernel need not know its family.
fn script(rules: &Rules, unwanted: &[Table]) -> Script {
    let mut script = Script::default();
    let wanted @ [_, _, has_own] = wanted(rules);
    for (table, is_wanted) in tables_of(&rules.interface).iter().zip(wanted) {
        if is_wanted || unwanted.contains(table) {
            script.clear(table);
        }
    }
    if let Some(full_tunnel) = &rules.full_tunnel {
        full_tunnel::add(&mut script, &rules.interface, full_tunnel);
    }
    let own = own_table(&rules.interface);
    if has_own {
        script.table(&own);
    }
    if let Some(kill_switch) = &rules.kill_switch {
        kill_switch::add(&mut script, &own, &rules.interface, kill_switch);
    }
    if rules.mss_clamp {
        mss_clamp::add(&mut script, &own, &rules.interface, rules.mtu.unwrap_or(MIN_MTU_IPV6));
    }
    script
}

/// Returns the table for the kill switch and the MSS clamp.
fn own_table(interface: &InterfaceName) -> Table {
    Table { family: Family::Inet, name: table_name(OWN_PREFIX, interface) }
}

/// Returns every table that can exist for an interface.
fn tables_of(interface: &InterfaceName) -> [Table; 3] {
    [full_tunnel_table(interface, false), full_tunnel_table(interface, true), own_table(interface)]
}

/// Returns how many packets the kill switch of a table has blocked, if the table has one.
fn blocked(table: &Table) -> Result<Option<u64>, FirewallError> {
    let action = format!("read the firewall's table {table}");
    let listing = nft::run(&["list", "table", table.family.as_str(), &table.name], &[], &action);
    match listing {
        Ok(listing) => Ok(blocked_in(&listing)),
        // It was removed meanwhile.
        Err(FirewallError::Refused { message, .. }) if message.contains(NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds up the counters of the rules that block, in a listing of nft.
fn blocked_in(listing: &str) -> Option<u64> {
    let chain = format!("chain {OUTPUT} {{");
    if !listing.lines().any(|line| line.trim() == chain) {
        return None;
    }
    let comment = format!("comment \"{COMMENT_OF_BLOCKED}\"");
    let rules = listing.lines().filter(|line| line.trim_end().ends_with(&comment));
    let counters = rules.filter_map(|rule| {
        let mut words = rule.split_whitespace().skip_while(|word| *word != "packets");
        words.nth(1)?.parse::<u64>().ok()
    });
    Some(counters.sum())
}
