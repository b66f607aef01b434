//! Takes back what a daemon that is gone has left.

use std::path::Path;

use weft_config::{InterfaceName, KillSwitch, Stage};

use super::kernel::Kernel;
use super::record::{Owner, Record};
use super::{Applied, HostError, Step, outside, run_hooks};
use crate::routes::Netlink;
use crate::runtime_dir::{control_socket, runtime_dir};

/// What stays in force of what a daemon left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// A kill switch: nothing may leave until the tunnel is there again.
    KillSwitch,
}

/// Takes back what a daemon that is gone has left behind, with PreDown and PostDown.
///
/// # Errors
/// A daemon runs the interface, or a part cannot be taken back, which stays on record then.
pub fn clean_up(directory: &Path, interface: &InterfaceName, keep: Keep) -> Result<(), HostError> {
    let owner = Owner::claim(directory, interface)?;
    // Another process may have cleaned up meanwhile.
    let Some(record) = owner.left_behind()? else { return Ok(()) };
    let mut kernel = Kernel::new(Netlink::open()?, interface.clone());
    let (mut failures, kept, _) = take_back(&record, &mut kernel, keep);
    match (failures.pop(), kept) {
        (None, None) => owner.forget(),
        (None, Some(step)) => owner.write(&record.of_kill_switch(step)),
        (Some(last), _) => {
            for failure in failures {
                tracing::warn!("{failure}");
            }
            Err(last)
        }
    }
}

/// Takes back the name servers that a daemon which is gone has left, and nothing else: those of a tunnel that is not
/// there cannot be asked where its peers are. What cannot be taken back is warned of, and stays on record.
pub fn take_back_dns(directory: &Path, interface: &InterfaceName) {
    // A daemon that runs the interface, or a record that cannot be written, is reported when the interface is prepared.
    let Ok(owner) = Owner::claim(directory, interface) else { return };
    let left = owner.left_behind().ok().flatten();
    if let Some(dns) = left.and_then(|record| record.dns)
        && let Err(error) = outside::undo_dns(interface, &dns)
    {
        tracing::warn!("{error}");
    }
    outside::repair_dns();
}

/// Takes back what a daemon that is gone has left, with PreDown and PostDown. Gives what failed, what was kept, and what
/// could not be taken back.
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
    run_hooks(&record.down, Stage::PreDown, kernel);
    let mut applied = Applied::recorded(steps);
    let failures = applied.undo(kernel);
    run_hooks(&record.down, Stage::PostDown, kernel);
    // No process answers there any more.
    let _gone = std::fs::remove_file(control_socket(&runtime_dir(), &record.interface));
    (failures, kept.into_iter().next(), applied.stuck().to_vec())
}

pub(super) fn has_kill_switch(step: &Step) -> bool {
    matches!(step, Step::Firewall(firewall) if firewall.kill_switch != KillSwitch::Off)
}
