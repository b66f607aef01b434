//! Linux: capabilities (capset(2)), system calls (seccomp(2)) and files (landlock(7)) of a thread.

use std::sync::Once;

use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::{Role, Support};

mod filter;
mod names;
mod refused;
mod threads;

pub(crate) use threads::threads;

pub(crate) fn support() -> Support {
    let actions = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let ruleset = Ruleset::default().handle_access(AccessFs::Execute).and_then(Ruleset::create);
    Support {
        system_calls: filter::is_known_processor() && actions.split(' ').any(|action| action == "trap"),
        // Without support the ruleset has no descriptor.
        files: ruleset.is_ok_and(|ruleset| Option::<std::os::fd::OwnedFd>::from(ruleset).is_some()),
    }
}

pub(crate) fn enable() {
    refused::report_and_end();
}

pub(crate) fn thread(role: Role) {
    static NO_CAPABILITIES: Once = Once::new();
    static NO_FILTER: Once = Once::new();
    static NO_FILES: Once = Once::new();
    if let Err(error) = keep(of(role)) {
        // A sandbox around the process may forbid it, as weft@.service does: it has CAP_NET_ADMIN alone,
        // which the filter makes useless.
        NO_CAPABILITIES.call_once(|| tracing::debug!(%error, "cannot give up capabilities"));
    }
    let readable = match role {
        Role::Names => Some("/"),
        // What the kernel says of the device.
        Role::Packets => Some("/proc"),
        Role::Opening | Role::Tun | Role::Service | Role::Member => None,
    };
    if let Some(readable) = readable {
        match only_read(readable) {
            Ok(true) => {}
            Ok(false) => NO_FILES.call_once(|| {
                tracing::debug!("the kernel has no landlock: access to files is not restricted");
            }),
            Err(error) => NO_FILES.call_once(|| tracing::warn!(%error, "cannot restrict access to files")),
        }
    }
    if let Err(error) = filter::install(role) {
        NO_FILTER.call_once(|| tracing::warn!(%error, "cannot filter system calls"));
    }
}

fn of(role: Role) -> CapabilitySet {
    let network = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE;
    match role {
        // root may open a /dev/net/tun that is another user's.
        Role::Opening => network | CapabilitySet::DAC_OVERRIDE,
        Role::Packets => network,
        Role::Tun | Role::Service | Role::Member | Role::Names => CapabilitySet::empty(),
    }
}

/// Gives up all other capabilities for good.
fn keep(needed: CapabilitySet) -> rustix::io::Result<()> {
    let has = capabilities(None)?;
    let sets = CapabilitySets {
        effective: has.effective & needed,
        permitted: has.permitted & needed,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}

/// Restricts this thread to reading files below this directory. Returns false if the kernel cannot.
fn only_read(readable: &str) -> Result<bool, landlock::RulesetError> {
    let abi = ABI::V5;
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi))?.create()?;
    let readable = landlock::path_beneath_rules([readable], AccessFs::from_read(abi));
    let status = ruleset.add_rules(readable)?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}
