//! Undoes what a daemon that has ended left behind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use weft_config::{HookPhase, InterfaceName, KillSwitch};
#[cfg(unix)]
use weft_ipc::runtime_dir;

use super::kernel::Kernel;
use super::record::{Apart, Owner, Record};
use super::{Applied, HostError, Step, hooks};
use crate::routes::Netlink;

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
            let apart = Apart::open(directory, interface)?.ok_or(error)?;
            // Another process may have cleaned up meanwhile.
            return apart.read()?.map_or(Ok(()), |record| undo(record, keep, |left| apart.write(left)));
        }
        claimed => claimed?,
    };
    owner.note_end();
    // As above.
    let Some(record) = owner.left_behind()? else { return Ok(()) };
    undo(record, keep, |left| left.map_or_else(|| owner.forget(), |left| owner.write(left)))
}

/// Undoes what a record says. `write` gets the record of what is left, if something is.
fn undo(
    record: Record,
    keep: Keep,
    write: impl FnOnce(Option<&Record>) -> Result<(), HostError>,
) -> Result<(), HostError> {
    let mut kernel = Kernel::new(Netlink::open()?, record.interface.clone());
    let (mut failures, kept, stuck) = take_back(&record, &mut kernel, keep);
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
    let mut failures = hooks::run_all(&record.down, HookPhase::PreDown, &record.interface);
    let mut applied = Applied::recorded(steps);
    failures.extend(applied.undo(kernel));
    failures.extend(hooks::run_all(&record.down, HookPhase::PostDown, &record.interface));
    #[cfg(unix)]
    if let Err(error) = weft_ipc::listener::remove_dead(&runtime_dir::control_socket(
        &runtime_dir::runtime_dir(),
        &record.interface,
    )) {
        tracing::debug!("the control socket stays: {error}");
    }
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
