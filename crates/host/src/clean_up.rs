//! Undoes what a daemon that has ended left behind.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use ipnet::IpNet;
use weft_config::{HookPhase, InterfaceName, KillSwitch};

use super::kernel::Kernel;
use super::plan::SRC_VALID_MARK;
use super::programs;
use super::record::{Apart, Owner, Record, UNDERSTAND, remove_dead_socket};
use super::{Applied, HostError, Step, hooks, outside, sysctl};
use crate::routes::{Family, FoundRule, Link, Netlink, Rule, RuleKind};

/// What is said of a record that cannot be understood, when the interface is taken back without it.
const WITHOUT_RECORD: &str = "it is kept there; firewall rules, name servers in /etc/resolv.conf and rules (`ip rule`) that are weft's by \
     their name or their table are taken back; PreDown and PostDown did not run, and sysctls and name servers elsewhere \
     may be left";

/// Which step stays in force when the steps of a daemon are undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All steps are undone.
    Nothing,
    /// A kill switch: no packet may leave until the tunnel is up again.
    KillSwitch,
}

/// Undoes what a daemon that has ended left behind, and runs PreDown and PostDown.
///
/// # Errors
/// A daemon runs the interface, a step cannot be undone, or a command fails. A record of steps that remain
/// stays, without the commands, which have run.
pub fn clean_up(directory: &Path, interface: &InterfaceName, keep: Keep) -> Result<(), HostError> {
    let owner = match Owner::claim(directory, interface) {
        Err(error @ HostError::Elsewhere { .. }) => {
            let Some(apart) = Apart::open(directory, interface)? else {
                // Name servers may be those of the process elsewhere.
                let mut found = unrecorded(directory, interface, None, false)?;
                found.dns = None;
                found.steps.retain(|step| !matches!(step, Step::Dns(_)));
                if found.steps.is_empty() {
                    return Err(error);
                }
                tell_of_sysctl(&found);
                return undo(found, keep, |_| Ok(()));
            };
            // Another process may have cleaned up meanwhile.
            return apart.read()?.map_or(Ok(()), |record| undo(record, keep, |left| apart.write(left)));
        }
        claimed => claimed?,
    };
    owner.note_end();
    // As above.
    let (left, lack) = left_behind(&owner, interface, None)?;
    let Some(record) = left else { return Ok(()) };
    undo(record, keep, |left| left.map_or_else(|| owner.forget(), |left| owner.write(left)))?;
    lack.map_or(Ok(()), Err)
}

/// Undoes what a daemon left behind of which there is no record, as far as it is recognisably weft's. Returns
/// whether there was something.
///
/// # Errors
/// Those of [`clean_up`].
pub fn clean_up_unrecorded(directory: &Path, interface: &InterfaceName) -> Result<bool, HostError> {
    Ok(is_left_unrecorded(directory, interface)
        && clean_up(directory, interface, Keep::Nothing).map(|()| true)?)
}

/// Reports whether there is something of an interface that is recognisably weft's, and on no record.
pub fn is_left_unrecorded(directory: &Path, interface: &InterfaceName) -> bool {
    unrecorded(directory, interface, None, false).is_ok_and(|found| !found.steps.is_empty())
}

/// Returns the record that a daemon has left. In place of one that cannot be understood, which is kept under
/// another name, or is not there, returns what is there and is recognisably weft's, and what to say about the
/// former. `own` is the device, if it is weft's.
pub(super) fn left_behind(
    owner: &Owner,
    interface: &InterfaceName,
    own: Option<&Link>,
) -> Result<(Option<Record>, Option<HostError>), HostError> {
    let error = match owner.left_behind() {
        Err(HostError::State { action, error, .. }) if action == UNDERSTAND => Some(error),
        Ok(None) => None,
        left => return Ok((left?, None)),
    };
    let file = error.is_some().then(|| owner.put_aside()).transpose()?;
    if file.is_some() {
        outside::repair_dns();
    }
    let lack = file.zip(error);
    let lack = lack.map(|(file, error)| HostError::State {
        action: UNDERSTAND,
        file,
        error,
        advice: WITHOUT_RECORD,
    });
    let found = unrecorded(owner.directory(), interface, own, lack.is_some())?;
    if found.steps.is_empty() && own.is_none() && lack.is_none() {
        return Ok((None, None));
    }
    tell_of_sysctl(&found);
    Ok((Some(found), lack))
}

/// Returns a record of what is there and is weft's by its name, its table or its device. Rules have no name:
/// without the device, and tables of the packet filter, they count if `had_record`.
fn unrecorded(
    directory: &Path,
    interface: &InterfaceName,
    own: Option<&Link>,
    had_record: bool,
) -> Result<Record, HostError> {
    let firewall = outside::unrecorded_firewall(interface, own.is_some())?;
    let was_here = had_record || own.is_some() || firewall.is_some();
    let netlink = Netlink::open()?;
    let of_others = Record::rules_of_others(directory, interface);
    let mut found = Record { index: own.map(|link| link.index), ..Record::new(interface) };
    if let Some(own) = own {
        found.steps.extend(netlink.addresses(own)?.into_iter().map(Step::Address));
    }
    let through = own.map_or_else(|| Ok(HashSet::default()), |link| netlink.routes_through(link))?;
    let rules = netlink.rules()?;
    // The pairs of a default route.
    let pairs = rules.iter().filter_map(|at| {
        let (family, mark) = (at.family, at.table);
        let rule = Rule { family, priority: at.priority, kind: RuleKind::Unmarked { mark, table: mark } };
        let priority = at.priority.saturating_sub(1);
        let before = Rule { family, priority, kind: RuleKind::MainWithoutDefault };
        let is_its = |other: &FoundRule, rule| other.is(rule) && other.is_unsigned;
        let is_pair = is_its(at, &rule) && rules.iter().any(|other| is_its(other, &before));
        (was_here && is_pair && !of_others.contains(&rule)).then_some((before, rule, mark))
    });
    let pairs: Vec<_> = pairs.collect();
    let in_use = if pairs.is_empty() { BTreeSet::new() } else { netlink.tables_in_use()? };
    // The table leads to this device, or nowhere any more.
    for (before, rule, mark) in pairs {
        let is_its = |(prefix, table): &&(IpNet, u32)| *table == mark && Family::of(*prefix) == rule.family;
        let routes = through.iter().filter(is_its);
        let routes: Vec<_> =
            routes.map(|(prefix, table)| Step::Route { prefix: *prefix, table: *table }).collect();
        if !routes.is_empty() || !in_use.contains(&mark) {
            found.mark = mark;
            found.steps.extend(routes);
            found.steps.extend([before, rule].map(Step::Rule));
        }
    }
    if own.is_none() {
        found.dns = outside::unrecorded_dns(interface);
        found.steps.extend(found.dns.as_ref().map(|record| Step::Dns(record.settings.clone())));
    }
    found.steps.extend(firewall.map(Step::Firewall));
    Ok(found)
}

/// Says what is not taken back without a record.
fn tell_of_sysctl(found: &Record) {
    let is_v4 = |step: &Step| step.as_rule().is_some_and(|rule| rule.family == Family::V4);
    if found.steps.iter().any(is_v4) && sysctl::read(SRC_VALID_MARK).is_some_and(|value| value == "1") {
        tracing::warn!(
            interface = %found.interface,
            "what the sysctl {SRC_VALID_MARK} was before is on no record: it stays 1; if no other program needs it, \
             `sysctl -w {SRC_VALID_MARK}=0`"
        );
    }
}

/// Undoes what a record says. `write` gets the record of what is left, if something is.
fn undo(
    record: Record,
    keep: Keep,
    write: impl FnOnce(Option<&Record>) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let mut kernel = Kernel::new(Netlink::open()?, record.interface.clone());
    let work = || take_back(&record, &mut kernel, keep);
    let (mut failures, kept, stuck) = programs::event(programs::OF_AN_EVENT, Instant::now(), work);
    match kept {
        None if stuck.is_empty() => write(None)?,
        Some(step) if stuck.is_empty() => write(Some(&record.of_kill_switch(step)))?,
        kept => {
            let steps = kept.into_iter().chain(stuck).collect();
            write(Some(&Record { steps, down: Vec::new(), ..record }))?;
        }
    }
    let last = failures.pop();
    for failure in failures {
        tracing::warn!("{failure}");
    }
    last.map_or(Ok(()), Err)
}

/// Undoes what a daemon that has ended left behind, and runs PreDown and PostDown. Returns the failures, the
/// step that was kept, and the steps that could not be undone.
pub(super) fn take_back(
    record: &Record,
    kernel: &mut Kernel,
    keep: Keep,
) -> (Vec<HostError>, Option<Step>, Vec<Step>) {
    let is_kept = |step: &Step| keep == Keep::KillSwitch && has_kill_switch(step);
    let (kept, steps): (Vec<Step>, Vec<Step>) = record.steps.iter().cloned().partition(is_kept);
    // A device with this name and another index belongs to another program.
    kernel.link = kernel.netlink.link(&record.interface).ok().filter(|link| Some(link.index) == record.index);
    kernel.dns.clone_from(&record.dns);
    let mut failures = hooks::run_each(&record.down, HookPhase::PreDown, &record.interface);
    let mut applied = Applied::recorded(steps);
    failures.extend(applied.undo(kernel));
    failures.extend(hooks::run_each(&record.down, HookPhase::PostDown, &record.interface));
    remove_dead_socket(&record.interface);
    (failures, kept.into_iter().next(), applied.stuck().to_vec())
}

/// Returns the last addresses of endpoints, by `host:port`, if a daemon crashed and its kill switch is still
/// in force: names cannot be looked up until the tunnel is up again.
pub fn remembered(directory: &Path, interface: &InterfaceName) -> BTreeMap<String, SocketAddr> {
    let left = Record::read(directory, interface).ok().flatten();
    left.filter(|record| record.steps.iter().any(has_kill_switch))
        .map_or_else(BTreeMap::new, |record| record.endpoints)
}

pub(super) fn has_kill_switch(step: &Step) -> bool {
    matches!(step, Step::Firewall(firewall) if firewall.kill_switch != KillSwitch::Off)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::firewall::{self, Local, OwnPackets, Rules};
    use crate::record::record_path;

    #[test]
    fn a_record_that_cannot_be_understood_is_kept_and_neither_a_kill_switch_nor_rules_are() {
        let namespace = weft_lab::Namespace::new("cut").unwrap();
        let name: InterfaceName = "weftcut".parse().unwrap();
        let own = OwnPackets::Marked(std::num::NonZeroU32::new(7).unwrap());
        let kill_switch = Some(firewall::KillSwitch { own, local: Local::Blocked });
        let wanted = Rules { kill_switch, ..Rules::none(name.clone()) };
        let directory = tempfile::tempdir().unwrap();
        let path = record_path(directory.path(), &name);
        let ip = |words: &str| {
            let output = namespace.command("ip").args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "{words}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        ip("link set lo up");
        // The rules of another program, and what its table leads to.
        ip("route add default dev lo table 77");
        let main = "table main suppress_prefixlength 0";
        for rule in
            ["not fwmark 77 table 77", main, "not fwmark 9 table 9", "not fwmark 5 table 5 protocol 4"]
        {
            ip(&format!("rule add {rule}"));
        }
        ip(&format!("rule add {main} protocol 4"));
        let rules = ip("rule");
        namespace.run(|| {
            for text in ["", "{\"version\":1,\"interf", "{\"version\":99}"] {
                for keep in [Keep::KillSwitch, Keep::Nothing] {
                    firewall::apply(&wanted).unwrap();
                    ip("rule add not fwmark 51820 table 51820");
                    ip(&format!("rule add {main}"));
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::fs::write(&path, text).unwrap();
                    assert!(Record::exists(directory.path(), &name).unwrap(), "{text}");
                    let told = clean_up(directory.path(), &name, keep).unwrap_err().to_string();
                    assert!(told.contains(path.to_str().unwrap()) && told.contains("ip rule"), "{told}");
                    let is_there = !firewall::present(&name).unwrap().is_empty();
                    assert_eq!(is_there, keep == Keep::KillSwitch, "{text}");
                    assert_eq!(ip("rule"), rules);
                    assert_eq!(std::fs::read_to_string(path.with_extension("json.unread")).unwrap(), text);
                    // What is kept is on record again.
                    clean_up(directory.path(), &name, Keep::Nothing).unwrap();
                    assert!(firewall::present(&name).unwrap().is_empty() && !path.exists(), "{text}");
                }
            }
        });
    }
}
