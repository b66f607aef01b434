//! `weft down`: takes an interface down from outside.

use std::path::Path;

use crate::cli::DownArgs;
use crate::config::{InterfaceName, LoadError, name_of, path_of};
use crate::exit::Error;
use crate::host::{self, Down, HostError, Keep, Record};
use crate::output;
use crate::runtime_dir::runtime_dir;
use crate::service_manager;

/// Ends the daemon that runs the interface, or takes back what one left behind.
///
/// # Errors
/// Those of [`HostError`].
pub fn run(args: &DownArgs) -> Result<(), Error> {
    let interface = interface_of(&args.target)?;
    let directory = runtime_dir();
    if args.dry_run {
        return output::print(host::told_down(&directory, &interface)?.as_bytes());
    }
    if args.keep_kill_switch && is_left_for_a_restart(&directory, &interface) {
        tracing::info!(%interface, "left as it is: the service is started again");
        return Ok(());
    }
    let keep = if args.keep_kill_switch { Keep::KillSwitch } else { Keep::Nothing };
    let down = match host::down(&directory, &interface, keep) {
        Err(HostError::NotUp { .. }) if args.keep_kill_switch => return Ok(()),
        down => down?,
    };
    match down {
        Down::Ended => tracing::info!(%interface, "interface is down"),
        Down::CleanedUp => tracing::info!(%interface, "what a daemon had left behind is taken back"),
        Down::LeftAlone(pid) => {
            tracing::info!(%interface, "left alone: weft runs it as process {pid}, which is not the service's");
        }
    }
    Ok(())
}

/// Whether the daemon of this very run of the service has left the interface to the next one, which is about to start.
fn is_left_for_a_restart(directory: &Path, interface: &InterfaceName) -> bool {
    let left = Record::read(directory, interface).ok().flatten().and_then(|record| record.handed_over);
    if left.is_none() || left != service_manager::invocation() {
        return false;
    }
    // The daemon has asked as well, but a restart can become a stop in between.
    service_manager::job().map_or_else(
        |error| {
            tracing::warn!("{error}; believing what the daemon was told");
            true
        },
        |job| job.is_restart,
    )
}

/// The file need not be there any more.
fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    name_of(&path_of(target))
}
