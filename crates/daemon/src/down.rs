//! `weft down`: takes an interface down from outside.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_commands::output;
use weft_config::exit::Error;
use weft_config::{InterfaceName, LoadError, name_of, path_of};
use weft_host::{HostError, Keep, Owner, Process, Record, record_path, told_backwards};
use weft_ipc::runtime_dir::{runtime_dir, user_dir};
use weft_report::control_socket::{Client, ClientError};

use crate::cli::DownArgs;
use crate::control;
use crate::service_manager;

/// Commands of the configuration may take long; systemd allows a service the same time.
const PATIENCE: Duration = Duration::from_secs(90);

/// Ends the daemon that runs the interface, or cleans up what a daemon left behind.
///
/// # Errors
/// Those of [`HostError`].
pub fn run(args: &DownArgs) -> Result<(), Error> {
    let interface = interface_of(&args.target)?;
    let directory = runtime_dir();
    let is_asked = |own: &PathBuf| *own != directory && Client::connect_in(own, &interface).is_ok();
    let own = user_dir().ok().filter(is_asked);
    if args.dry_run {
        // Its namespaces and all in them end with the device.
        let told = match own {
            Some(_) => told_backwards(&interface, &[], &[]),
            None => told(&directory, &interface)?,
        };
        return output::print(told.as_bytes());
    }
    if let Some(own) = own
        && end_over_socket(&own, &interface)?
    {
        tracing::info!(%interface, "interface is down");
        return Ok(());
    }
    if args.keep_kill_switch && is_left_for_a_restart(&directory, &interface) {
        tracing::info!(%interface, "left as it is: the service is started again");
        return Ok(());
    }
    let keep = if args.keep_kill_switch { Keep::KillSwitch } else { Keep::Nothing };
    match down(&directory, &interface, keep)? {
        Down::Ended => tracing::info!(%interface, "interface is down"),
        Down::CleanedUp => tracing::info!(%interface, "what a daemon had left behind is taken back"),
        Down::LeftAlone(pid) => {
            tracing::info!(%interface, "left alone: weft runs it as process {pid}, which is not the service's");
        }
        Down::NotUp if args.keep_kill_switch => {}
        Down::NotUp => return Err(not_up(&directory, &interface).into()),
    }
    Ok(())
}

/// The outcome of taking an interface down.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// A daemon, which has ended.
    Ended,
    /// What a crashed daemon left behind was cleaned up.
    CleanedUp,
    /// Nothing was done: this process runs the interface, and cleans up itself.
    LeftAlone(u32),
    /// Nothing to take down.
    NotUp,
}

/// Takes an interface down. A daemon that runs it, with a configuration or as `weft NAME`, is asked to end
/// and cleans up itself; what a daemon left behind is cleaned up here. With [`Keep::KillSwitch`] only the
/// latter: that is for commands that run when the main process of a service is gone, so a running daemon was
/// started by other means.
pub(crate) fn down(directory: &Path, interface: &InterfaceName, keep: Keep) -> Result<Down, Error> {
    let mut has_ended = false;
    if let Some(process) = Owner::running(directory, interface)? {
        if keep == Keep::KillSwitch {
            return Ok(Down::LeftAlone(process.id));
        }
        if !Process::TAKES_SIGNALS && !end_over_socket(directory, interface)? {
            let interface = interface.to_string();
            return Err(HostError::Unreachable { interface, pid: process.id }.into());
        }
        match process.end(PATIENCE) {
            Ok(true) => has_ended = true,
            Ok(false) => {
                return Err(HostError::NotEnding { pid: process.id, seconds: PATIENCE.as_secs() }.into());
            }
            Err(error) => return Err(HostError::Signal { pid: process.id, error }.into()),
        }
    } else if keep == Keep::Nothing {
        has_ended = end_over_socket(directory, interface)?;
    }
    // If the daemon crashed while it ended, the rest is cleaned up here.
    if Record::read(directory, interface)?.is_some() {
        return match weft_host::clean_up(directory, interface, keep) {
            // Another daemon has started meanwhile. It has cleaned up, and the rest is its own.
            Err(HostError::Running { .. }) if has_ended => Ok(Down::Ended),
            Err(HostError::Running { pid, .. }) if keep == Keep::KillSwitch => Ok(Down::LeftAlone(pid)),
            result => {
                remove_sockets(interface);
                Ok(result.map(|()| Down::CleanedUp)?)
            }
        };
    }
    if has_ended {
        return Ok(Down::Ended);
    }
    // A daemon that `weft up` did not start has no record, and leaves no more than a socket. Records are lost
    // in a power cut, while /etc/resolv.conf stays.
    let had_socket = remove_sockets(interface);
    let had_dns = weft_host::repair_dns().iter().any(|name| name == interface.as_str());
    let had_kill_switch = keep == Keep::Nothing && weft_host::remove_unrecorded_firewall(interface)?;
    Ok(if had_socket || had_dns || had_kill_switch { Down::CleanedUp } else { Down::NotUp })
}

/// Ends a daemon over its control socket. That which `weft NAME` started has a control socket, but no record
/// and no lock. Returns whether there was one.
fn end_over_socket(directory: &Path, interface: &InterfaceName) -> Result<bool, ClientError> {
    match Client::connect_in(directory, interface).and_then(|client| client.stop(PATIENCE)) {
        Ok(()) => Ok(true),
        Err(ClientError::NotRunning { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes sockets that no process serves. Returns whether there was one for wg(8).
fn remove_sockets(interface: &InterfaceName) -> bool {
    if let Err(error) = control::socket::remove_dead(&Client::path_of(interface)) {
        tracing::debug!("the control socket stays: {error}");
    }
    weft_uapi::remove_dead(interface).unwrap_or_else(|error| {
        tracing::debug!("the socket for wg(8) stays: {error}");
        false
    })
}

/// Returns the lines of `weft down --dry-run`.
fn told(directory: &Path, interface: &InterfaceName) -> Result<String, HostError> {
    match Record::read(directory, interface)? {
        Some(record) => Ok(told_backwards(interface, &record.steps, &record.down)),
        // `weft NAME` sets up nothing but the device.
        None if Client::connect_in(directory, interface).is_ok() => Ok(told_backwards(interface, &[], &[])),
        None => Err(not_up(directory, interface)),
    }
}

fn not_up(directory: &Path, interface: &InterfaceName) -> HostError {
    HostError::NotUp { interface: interface.to_string(), file: record_path(directory, interface) }
}

/// Reports whether the daemon of this same run of the service has left the interface to the next run, which
/// is about to start.
fn is_left_for_a_restart(directory: &Path, interface: &InterfaceName) -> bool {
    let handed_over = Record::read(directory, interface).ok().flatten().and_then(|record| record.handed_over);
    if handed_over.is_none() || handed_over != service_manager::invocation() {
        return false;
    }
    // The daemon asked systemd too, but since then the restart may have become a stop.
    service_manager::job().map_or_else(
        |error| {
            tracing::warn!("{error}; believing what the daemon was told");
            true
        },
        |job| job.is_restart,
    )
}

/// Returns the interface that the target names. The file need not exist any more.
fn interface_of(target: &str) -> Result<InterfaceName, LoadError> {
    name_of(&path_of(target))
}
