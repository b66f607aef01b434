//! `weft down`: ends the daemon that runs an interface, and takes back what a daemon that is gone has left.

use std::path::Path;
use std::time::Duration;

use super::kernel::Kernel;
use super::plan::told_backwards;
use super::record::{Owner, Record, record_path};
use super::{Applied, HostError, platform, run_hooks};
use crate::config::{InterfaceName, Stage};
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
}

/// Takes an interface down: a daemon that runs it is told to end, and does the rest; what a daemon left behind is
/// taken back here, with PreDown and PostDown.
///
/// # Errors
/// When there is nothing to take down, the daemon may not be told or does not end, or a part cannot be taken back,
/// which stays on record then.
pub fn down(directory: &Path, interface: &InterfaceName) -> Result<Down, HostError> {
    let mut ended = false;
    if let Some(process) = Owner::running(directory, interface) {
        match platform::end(process, PATIENCE) {
            Ok(true) => ended = true,
            Ok(false) => {
                return Err(HostError::NotEnding { pid: process.id, seconds: PATIENCE.as_secs() });
            }
            Err(error) => return Err(HostError::Signal { pid: process.id, error }),
        }
    }
    // A daemon that crashed while it ended leaves the rest to us.
    match (Record::read(directory, interface)?, ended) {
        (Some(_), _) => clean_up(directory, interface).map(|()| Down::CleanedUp),
        (None, true) => Ok(Down::Ended),
        (None, false) => {
            let file = record_path(directory, interface);
            Err(HostError::NotUp { interface: interface.to_string(), file })
        }
    }
}

/// The lines of `weft down --dry-run`.
pub fn told(directory: &Path, interface: &InterfaceName) -> Result<String, HostError> {
    let record = Record::read(directory, interface)?.ok_or_else(|| HostError::NotUp {
        interface: interface.to_string(),
        file: record_path(directory, interface),
    })?;
    Ok(told_backwards(interface, &record.steps, &record.down))
}

fn clean_up(directory: &Path, interface: &InterfaceName) -> Result<(), HostError> {
    let owner = Owner::claim(directory, interface)?;
    // Somebody may have been quicker.
    let Some(mut record) = owner.left_behind()? else { return Ok(()) };
    let mut kernel = Kernel::new(Netlink::open()?, interface.clone());
    // A device of that name and another number is somebody else's.
    kernel.link = kernel.netlink.link(interface).ok().filter(|link| Some(link.index) == record.index);
    kernel.dns = record.dns.take();
    run_hooks(&record.down, Stage::PreDown, &kernel);
    let mut failures = Applied::recorded(record.steps).undo(&mut kernel);
    run_hooks(&record.down, Stage::PostDown, &kernel);
    match failures.pop() {
        None => owner.forget(),
        Some(last) => {
            for failure in failures {
                tracing::warn!("{failure}");
            }
            Err(last)
        }
    }
}
