//! `weft down`: ends the daemon that runs an interface, and takes back what a daemon that is gone has left.

use std::path::Path;
use std::time::Duration;

use super::kernel::Kernel;
use super::plan::told_backwards;
use super::record::{Owner, Record, record_path};
use super::{Applied, HostError, Step, outside, platform, run_hooks};
use crate::config::{InterfaceName, KillSwitch, Stage};
use crate::control::socket::{Client, ClientError};
use crate::control::uapi;
use crate::routes::Netlink;

/// Commands of the configuration may take long; systemd gives a service as much time.
const PATIENCE: Duration = Duration::from_secs(90);

/// What there was to take down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// A daemon, which has ended.
    Ended,
    /// What a daemon had left behind when it crashed.
    CleanedUp,
    /// Nothing: this process runs the interface, and whoever keeps a kill switch cleans up after another one.
    LeftAlone(u32),
}

/// What stays in force of what a daemon left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// A kill switch: nothing may leave until the tunnel is there again.
    KillSwitch,
}

/// Takes an interface down: a daemon that runs it, with a configuration or as `weft NAME`, is told to end,
/// and does the rest; what a daemon left behind is taken back here, with PreDown and PostDown. With
/// [`Keep::KillSwitch`] only the latter: that is for what runs when the main process of a service is gone,
/// and one that is there is another user's.
///
/// # Errors
/// When there is nothing to take down, the daemon may not be told or does not end, or a part cannot be taken back,
/// which stays on record then.
pub fn down(directory: &Path, interface: &InterfaceName, keep: Keep) -> Result<Down, HostError> {
    let mut ended = false;
    if let Some(process) = Owner::running(directory, interface)? {
        if keep == Keep::KillSwitch {
            return Ok(Down::LeftAlone(process.id));
        }
        match platform::end(process, PATIENCE) {
            Ok(true) => ended = true,
            Ok(false) => {
                return Err(HostError::NotEnding { pid: process.id, seconds: PATIENCE.as_secs() });
            }
            Err(error) => return Err(HostError::Signal { pid: process.id, error }),
        }
    } else if keep == Keep::Nothing {
        ended = end_over_socket(directory, interface)?;
    }
    // A daemon that crashed while it ended leaves the rest to us.
    match (Record::read(directory, interface)?, ended) {
        (Some(_), _) => clean_up(directory, interface, keep).map(|()| Down::CleanedUp),
        (None, true) => Ok(Down::Ended),
        (None, false) if clean_up_unrecorded(interface) => Ok(Down::CleanedUp),
        (None, false) => {
            let file = record_path(directory, interface);
            Err(HostError::NotUp { interface: interface.to_string(), file })
        }
    }
}

/// Ends what `weft NAME` runs: it has a control socket, but no record and no lock. Says whether there was
/// anything.
fn end_over_socket(directory: &Path, interface: &InterfaceName) -> Result<bool, HostError> {
    match Client::connect_in(directory, interface).and_then(|client| client.stop(PATIENCE)) {
        Ok(()) => Ok(true),
        Err(ClientError::NotRunning { .. } | ClientError::Unsupported) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The lines of `weft down --dry-run`.
pub fn told(directory: &Path, interface: &InterfaceName) -> Result<String, HostError> {
    match Record::read(directory, interface)? {
        Some(record) => Ok(told_backwards(interface, &record.steps, &record.down)),
        // `weft NAME` sets up nothing but the device.
        None if Client::connect_in(directory, interface).is_ok() => Ok(told_backwards(interface, &[], &[])),
        None => {
            let file = record_path(directory, interface);
            Err(HostError::NotUp { interface: interface.to_string(), file })
        }
    }
}

fn clean_up(directory: &Path, interface: &InterfaceName, keep: Keep) -> Result<(), HostError> {
    let owner = Owner::claim(directory, interface)?;
    // Somebody may have been quicker.
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

/// Takes back what is found without a record; says whether there was anything of the interface.
fn clean_up_unrecorded(interface: &InterfaceName) -> bool {
    // A daemon that `weft up` did not start is not on record, and leaves no more than that.
    let had_socket = remove_dead_socket(interface);
    // Records go with a power cut, and /etc/resolv.conf stays.
    let repaired = outside::repair_dns();
    had_socket || repaired.iter().any(|name| name == interface.as_str())
}

/// Takes back the name servers that a daemon which is gone has left, and nothing else: those of a tunnel that is not
/// there cannot be asked where its peers are. What cannot be taken back is warned of, and stays on record.
pub fn take_back_dns(directory: &Path, interface: &InterfaceName) {
    // Whoever runs the interface, or cannot write anything down, is told so when it is prepared.
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
    // A device of that name and another number is somebody else's.
    kernel.link = kernel.netlink.link(&record.interface).ok().filter(|link| Some(link.index) == record.index);
    kernel.dns.clone_from(&record.dns);
    run_hooks(&record.down, Stage::PreDown, kernel);
    let mut applied = Applied::recorded(steps);
    let failures = applied.undo(kernel);
    run_hooks(&record.down, Stage::PostDown, kernel);
    // Nobody answers there any more.
    let _gone = std::fs::remove_file(Client::path_of(&record.interface));
    remove_dead_socket(&record.interface);
    (failures, kept.into_iter().next(), applied.stuck().to_vec())
}

/// Removes the socket for wg(8) if nobody answers on it; says whether there was one.
fn remove_dead_socket(interface: &InterfaceName) -> bool {
    uapi::remove_dead(interface).unwrap_or_else(|error| {
        tracing::debug!("the socket for wg(8) stays: {error}");
        false
    })
}

pub(super) fn has_kill_switch(step: &Step) -> bool {
    matches!(step, Step::Firewall(firewall) if firewall.kill_switch != KillSwitch::Off)
}
