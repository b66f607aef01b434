//! Gathers the state of the system that a plan depends on.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use weft_config::Config;

use super::plan::{SRC_VALID_MARK, SystemState, needs_mark};
use super::record::Record;
use super::{HostError, sysctl};
use crate::routes::{FoundRule, Netlink};

/// Returns the state of the system for this configuration. `paths` knows the routes to the peers, which
/// differ from those around the device if that is in a separate namespace. `directory` holds the records of
/// other interfaces; `mark_in_force` is the mark that the device has already (0: none).
pub(super) fn gather(
    netlink: &Netlink,
    paths: &Netlink,
    config: &Config,
    endpoints: &[SocketAddr],
    directory: Option<&Path>,
    mark_in_force: u32,
) -> Result<SystemState, HostError> {
    let interface = &config.interface;
    let mark = if interface.settings.fw_mark == 0 { mark_in_force } else { interface.settings.fw_mark };
    let marks = directory.map(|directory| Record::marks_of_others(directory, &interface.name));
    let planned = directory.map(|directory| Record::rules_of_others(directory, &interface.name));
    let mut rules = netlink.rules()?;
    rules.extend(planned.iter().flatten().map(FoundRule::from));
    rules.sort_by_key(|rule| (rule.family, rule.priority));
    let routing = netlink.routing()?;
    let before = || Record::sysctl_before_others(directory?, &interface.name, SRC_VALID_MARK);
    // A router with all routes of the Internet takes a second to list them.
    let has_to_choose = mark == 0 && needs_mark(config, &routing);
    Ok(SystemState {
        tables: if has_to_choose { netlink.tables_in_use()? } else { BTreeSet::new() },
        marks: marks.unwrap_or_default(),
        rules,
        routing,
        src_valid_mark: sysctl::read(SRC_VALID_MARK).map(|now| before().unwrap_or(now)),
        mark_in_force,
        default_mtu: if interface.mtu.is_some() { 0 } else { paths.default_mtu(config, endpoints, mark) },
    })
}
