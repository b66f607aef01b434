//! `weft down`: takes an interface down from outside.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_commands::output;
use weft_commands::own_file::interface_of;
use weft_config::InterfaceName;
use weft_config::exit::{Code, Error};
use weft_host::{
    HostError, Keep, Owner, Process, Record, Unsaved, is_within_any_command, is_within_command, record_path,
    told_backwards,
};
use weft_ipc::holder::state_of;
use weft_ipc::runtime_dir::{runtime_dir, user_dir};
use weft_report::control_socket::{Client, ClientError, ManageError};
use weft_report::finding::Level;

use crate::cli::DownArgs;
use crate::control;
use crate::foreign;
use crate::service_manager;
use crate::up::edited;

/// The time for an end that waits for no command. One that a command waits for has it too: the commands may
/// wait for each other.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a process may be stopped, and how often it is looked at.
const STOPPED: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);

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
        && let Some(failures) = end_over_socket(&own, &interface)?
    {
        return told_of(&interface, Down::Ended(failures));
    }
    if args.keep_kill_switch && is_left_for_a_restart(&directory, &interface) {
        tracing::info!(%interface, "left as it is: the service is started again");
        return Ok(());
    }
    let keep = if args.keep_kill_switch { Keep::KillSwitch } else { Keep::Nothing };
    let outcome = down(&directory, &interface, keep)?;
    let was_saved = match outcome {
        // What a daemon has just told of need not be told again, and a service may not write its file.
        Down::NotUp | Down::CleanedUp if keep == Keep::Nothing => save_at_last(&directory, &interface)?,
        _ => false,
    };
    match outcome {
        Down::NotUp if was_saved => Ok(()),
        Down::LeftAlone(pid) => {
            tracing::info!(%interface, "left alone: weft runs it as process {pid}, which is not the service's");
            Ok(())
        }
        Down::NotUp if args.keep_kill_switch => Ok(()),
        Down::NotUp => Err(match foreign::runs(&interface) {
            Some(runs) => Error::new(Code::Failure, format!("{interface} is not running under weft: {runs}")),
            None => not_up(&directory, &interface).into(),
        }),
        other => told_of(&interface, other),
    }
}

/// Saves what could not be saved when the interface went down. Returns whether there was something.
fn save_at_last(directory: &Path, interface: &InterfaceName) -> Result<bool, Error> {
    let message = match weft_host::settle_unsaved(directory, interface, None, None) {
        Unsaved::Nothing => return Ok(false),
        Unsaved::Saved { file } => {
            tracing::info!(%interface, file = %file.display(), "saved what could not be saved at the last end");
            return Ok(true);
        }
        Unsaved::Kept { file, kept, error, .. } => {
            let (file, kept) = (file.display(), kept.display());
            format!("{file}: cannot save the state of {interface}: {error}; it is kept in {kept}")
        }
        Unsaved::Edited { file, kept } => edited(&file, &kept),
    };
    Err(Error::new(Code::Failure, message))
}

/// Reports how an interface went down.
fn told_of(interface: &InterfaceName, down: Down) -> Result<(), Error> {
    match down {
        Down::Ended(failures) if !failures.is_empty() => {
            let lines = failures.join("\n");
            let message = format!("{lines}\ninterface {interface} is down, but its end failed in part");
            Err(Error::new(Code::Failure, message))
        }
        Down::CleanedUp => {
            tracing::info!(%interface, "undid what a previous daemon had left behind");
            Ok(())
        }
        _ => {
            tracing::info!(%interface, "interface is down");
            Ok(())
        }
    }
}

/// The outcome of taking an interface down.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Down {
    /// A daemon, which has ended, and what failed at its end.
    Ended(Vec<String>),
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
    let mut ended = None;
    if let Some(process) = Owner::running(directory, interface)? {
        if keep == Keep::KillSwitch {
            return Ok(Down::LeftAlone(process.id));
        }
        if process.is_elsewhere() {
            // It is another interface of that name. A daemon may have left something here.
            weft_host::clean_up(directory, interface, keep)?;
            return Ok(Down::CleanedUp);
        }
        ended = Some(end_process(process, directory, interface)?);
    } else if keep == Keep::Nothing {
        weft_host::refuse_elsewhere(interface, served_by(directory, interface))?;
        ended = end_over_socket(directory, interface)?;
    }
    // If the daemon crashed while it ended, or could not undo everything, the rest is cleaned up here.
    if Record::exists(directory, interface)? {
        let clean_up = || weft_host::clean_up(directory, interface, keep);
        let has_failed = ended.as_ref().is_some_and(|failures| !failures.is_empty());
        let unsaved = ended.as_ref().and_then(|_| unsaved(directory, interface));
        let result = if has_failed { weft_host::once_more(clean_up) } else { clean_up() };
        return match (result, ended) {
            // Another daemon has started meanwhile. It has cleaned up, and the rest is its own.
            (Err(HostError::Running { .. }), Some(failures)) => Ok(Down::Ended(failures)),
            (Err(HostError::Running { pid, .. }), _) if keep == Keep::KillSwitch => Ok(Down::LeftAlone(pid)),
            (result, ended) => {
                remove_sockets(interface);
                match ended {
                    Some(mut failures) if !failures.is_empty() => {
                        let more = result.err().map(|error| error.to_string());
                        let more = more.filter(|error| !failures.contains(error));
                        failures.extend(more);
                        Ok(Down::Ended(failures))
                    }
                    _ => Ok(result.map(|()| unsaved.map_or(Down::CleanedUp, |lost| Down::Ended(vec![lost])))?),
                }
            }
        };
    }
    if let Some(failures) = ended {
        return Ok(Down::Ended(failures));
    }
    let had_record = keep == Keep::Nothing && Record::forget_if_gone(directory, interface)?;
    // A daemon that `weft up` did not start has no record, and leaves no more than a socket. Records are lost
    // in a power cut, while /etc/resolv.conf stays.
    let had_socket = !Record::is_of_another_namespace(directory, interface) && remove_sockets(interface);
    let had_dns = weft_host::repair_dns().iter().any(|name| name == interface.as_str());
    let had_rest = keep == Keep::Nothing && weft_host::clean_up_unrecorded(directory, interface)?;
    Ok(if had_record || had_socket || had_dns || had_rest { Down::CleanedUp } else { Down::NotUp })
}

/// Says that the state of an interface, which its file wants to have at the end, may be lost: its daemon was
/// killed while it ended.
fn unsaved(directory: &Path, interface: &InterfaceName) -> Option<String> {
    let file = Record::read(directory, interface).ok()??.file?;
    let text = weft_config::read_regular_text(&file).ok()?;
    let config = weft_config::parse_to_edit(&text, &file, interface.clone()).ok()?.config;
    config.interface.host.save_config.then(|| {
        format!(
            "{}: the daemon of {interface} was killed while it ended, and may not have saved its state",
            file.display()
        )
    })
}

/// Returns the process that serves the control socket of an interface.
fn served_by(directory: &Path, interface: &InterfaceName) -> Option<u32> {
    Client::connect_in(directory, interface).ok()?.server_process()
}

/// Ends a daemon that runs an interface with a configuration, and waits for the end of its process. Returns
/// what failed at the end.
fn end_process(process: Process, directory: &Path, interface: &InterfaceName) -> Result<Vec<String>, Error> {
    refuse_stopped(process)?;
    let failures = match end_over_socket(directory, interface) {
        Ok(failures) => failures,
        // A socket that is not served, or not well, keeps no daemon from ending.
        Err(
            error @ (ClientError::Io { .. }
            | ClientError::Timeout { .. }
            | ClientError::StillServed { .. }
            | ClientError::Garbled { .. }),
        ) => {
            tracing::warn!("{error}");
            None
        }
        Err(error) => return Err(error.into()),
    };
    if failures.is_none() {
        refuse_stopped(process)?;
        if !Process::TAKES_SIGNALS {
            let interface = interface.to_string();
            return Err(HostError::Unreachable { interface, pid: process.id }.into());
        }
        if is_within_command(interface) {
            let message = format!("{interface} ends when the command has ended that wants to take it down");
            return Err(Error::new(Code::Failure, message));
        }
        tracing::warn!(
            "process {} is ended by a signal, as it does not answer on its control socket: whether its commands and \
             SaveConfig succeed is only in its log",
            process.id
        );
    }
    // After an end over the socket the signal has no effect any more, and this only waits.
    match process.end(PATIENCE) {
        Ok(true) => Ok(failures.unwrap_or_default()),
        Ok(false) => {
            let state = state_of(process.id).map_or_else(String::new, |state| format!(", state {state}"));
            Err(HostError::NotEnding { pid: process.id, state, seconds: PATIENCE.as_secs() }.into())
        }
        Err(error) => Err(HostError::Signal { pid: process.id, error }.into()),
    }
}

/// Waits a moment for a process that is stopped, as by Ctrl-Z, SIGSTOP or a debugger, and is not for long.
///
/// # Errors
/// [`HostError::Stopped`]: it neither answers nor takes a signal.
fn refuse_stopped(process: Process) -> Result<(), HostError> {
    let begin = Instant::now();
    loop {
        match state_of(process.id).filter(|state| state.starts_with(['T', 't'])) {
            None => return Ok(()),
            Some(state) if begin.elapsed() >= STOPPED => {
                return Err(HostError::Stopped { pid: process.id, state });
            }
            Some(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Ends a daemon over its control socket. That which `weft NAME` started has a control socket, but no record
/// and no lock. Returns what failed at its end, or `None` if there was no daemon.
fn end_over_socket(directory: &Path, interface: &InterfaceName) -> Result<Option<Vec<String>>, ClientError> {
    let client = match Client::connect_in(directory, interface) {
        Err(ClientError::NotRunning { .. }) => return Ok(None),
        connected => connected?,
    };
    let within_command = is_within_command(interface);
    // One of another user says what it likes of its commands.
    let is_believed = client.other_user()?.is_none();
    let mut told = String::new();
    let goes_on = |passed: Duration| {
        let waits_for = waits_for(directory, interface);
        if let Some(command) = waits_for.as_ref().filter(|command| **command != told) {
            tracing::warn!("{interface}: {command}");
            told.clone_from(command);
        }
        passed < PATIENCE || (is_believed && waits_for.is_some() && !is_within_any_command())
    };
    match client.stop(within_command, goes_on) {
        Ok(failures) => Ok(Some(failures)),
        Err(ClientError::NotRunning { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns what the end of an interface waits for, if that is a command.
fn waits_for(directory: &Path, interface: &InterfaceName) -> Option<String> {
    match Client::connect_in(directory, interface).ok()?.status() {
        Ok(report) => {
            let told = report
                .findings
                .into_iter()
                .find(|finding| finding.level == Level::Warning && finding.check == "ending");
            told.map(|finding| finding.says)
        }
        Err(ClientError::Refused(ManageError::Failed(message))) => Some(message),
        Err(_) => None,
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
    let (is_elsewhere, file) =
        (Record::is_of_another_namespace(directory, interface), record_path(directory, interface));
    let interface = interface.to_string();
    if is_elsewhere {
        HostError::LeftElsewhere { interface, file }
    } else {
        HostError::NotUp { interface, file }
    }
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
