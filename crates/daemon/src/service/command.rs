//! `weft service` on macOS, FreeBSD and Windows: the places of the system, and what the command prints.

use std::path::Path;
#[cfg(target_os = "macos")]
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_commands::{output, signals};
use weft_config::exit::{Code, Error};
use weft_config::{self as config, InterfaceName, LoadError, name_of, path_of};
use weft_host::{Keep, Owner};
use weft_ipc::runtime_dir::runtime_dir;

use super::error::ServiceError;
use super::lifecycle::{Daemons, Installed, Manager, Service};
use crate::cli::{ServiceAction, ServiceArgs};
use crate::down::{self, Down};

/// The directory of the services' logs.
#[cfg(unix)]
const LOGS: &str = "/var/log/weft";

/// Reports whether the user has interrupted the command.
type Interrupted = Arc<AtomicBool>;

#[cfg(target_os = "macos")]
fn manager(interface: &InterfaceName, _: &Interrupted) -> Result<impl Manager + use<>, ServiceError> {
    let launchctl = PathBuf::from("/bin/launchctl");
    super::launchd::Launchd::new(launchctl, Path::new("/Library/LaunchDaemons"), Path::new(LOGS), interface)
}

#[cfg(target_os = "freebsd")]
fn manager(interface: &InterfaceName, _: &Interrupted) -> Result<impl Manager + use<>, ServiceError> {
    let (programs, scripts) = (Path::new("/usr/sbin"), Path::new("/usr/local/etc/rc.d"));
    Ok(super::rc_d::RcD::new(programs, scripts, Path::new(LOGS), interface))
}

#[cfg(windows)]
fn manager(
    interface: &InterfaceName,
    interrupted: &Interrupted,
) -> Result<impl Manager + use<>, ServiceError> {
    use super::windows::{Calls, Windows};
    use crate::service_manager;
    let interrupted = Arc::clone(interrupted);
    Ok(Windows::new(Calls::new, &service_manager::logs(), interface, move || {
        interrupted.load(Ordering::Relaxed)
    }))
}

/// Fails unless this user may change services.
#[cfg(unix)]
fn may_change() -> Result<(), Error> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let advice = "only root installs and removes services: run the command with sudo, or as root";
    Err(Error::new(Code::Permission, advice))
}

#[cfg(windows)]
use super::windows::may_change;

/// Installs, removes or shows the service of an interface.
///
/// # Errors
/// Those of the configuration, before anything is changed; those of [`ServiceError`].
pub fn run(args: &ServiceArgs) -> Result<(), Error> {
    let target = match &args.action {
        ServiceAction::Install(args) | ServiceAction::Remove(args) => &args.target,
        ServiceAction::Status(args) => &args.target,
    };
    let path = path_of(target);
    let interface = name_of(&path)?;
    if let ServiceAction::Install(_) = args.action {
        check(target)?;
    }
    let interrupted = Interrupted::default();
    let manager = manager(&interface, &interrupted)?;
    let is_interrupted = || interrupted.load(Ordering::Relaxed);
    let service =
        Service { manager: &manager, daemons: &Running, interface: &interface, interrupted: &is_interrupted };
    let name = manager.name();
    if !matches!(args.action, ServiceAction::Status(_)) {
        may_change()?;
    }
    match &args.action {
        ServiceAction::Install(_) => {
            let failed = |path: &Path, error| ServiceError::File { action: "find", path: path.into(), error };
            let weft = std::env::current_exe().map_err(|error| failed(Path::new("weft"), error))?;
            let caught = Arc::clone(&interrupted);
            signals::watch(move |_| caught.store(true, Ordering::Relaxed))
                .map_err(|error| Error::new(Code::Failure, format!("cannot watch for Ctrl-C: {error}")))?;
            // A service runs in another directory.
            let path = std::path::absolute(&path).map_err(|error| failed(&path, error))?;
            let told = match service.install(&weft, &path)? {
                Installed::Unchanged => "is installed and running: nothing to change",
                Installed::Started => "is installed and started",
                Installed::Replaced => "is replaced and restarted",
            };
            output::print(format!("{name} {told}\n").as_bytes())
        }
        ServiceAction::Remove(_) => {
            let told = if service.remove()? { "is removed" } else { "is not installed: nothing to remove" };
            output::print(format!("{name} {told}\n").as_bytes())
        }
        ServiceAction::Status(args) => {
            let report = service.report()?;
            if args.json {
                output::print_json(&report)?;
            } else {
                output::print(report.text().as_bytes())?;
            }
            Ok(report.outcome()?)
        }
    }
}

/// Loads the configuration as `weft check` does, and prints its warnings.
fn check(target: &str) -> Result<(), LoadError> {
    let mut warnings = config::load_to_start(target)?.warnings;
    weft_host::warn_of_readers(target, &mut warnings);
    for warning in warnings {
        output::warning(&warning);
    }
    Ok(())
}

/// The daemons below the runtime directory.
struct Running;

impl Daemons for Running {
    fn running(&self, interface: &InterfaceName) -> Result<Option<u32>, Error> {
        Ok(Owner::running(&runtime_dir(), interface)?.map(|process| process.id))
    }

    fn take_down(&self, interface: &InterfaceName) -> Result<(), Error> {
        if let Down::Ended(failures) = down::down(&runtime_dir(), interface, Keep::Nothing)? {
            for failure in failures {
                output::warning(&failure);
            }
        }
        Ok(())
    }
}
