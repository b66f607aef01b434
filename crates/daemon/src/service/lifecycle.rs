//! Installs, removes and shows a service. What differs between the systems is a [`Manager`].

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use weft_config::InterfaceName;
use weft_config::exit;

use super::error::ServiceError;

/// How a system runs a service.
pub(super) trait Manager {
    /// Returns the name that the system knows the service by.
    fn name(&self) -> &str;
    /// Returns the file that defines the service, on Windows the key of the registry.
    fn file(&self) -> &Path;
    /// Returns the file with the service's log.
    fn log(&self) -> &Path;
    /// Returns the definition of the service, for the program and the configuration at these paths.
    fn text(&self, weft: &str, configuration: &str) -> String;
    /// Returns the definition in force, or `None` if there is none.
    ///
    /// # Errors
    /// Also for a definition that is not weft's.
    fn read(&self) -> Result<Option<String>, ServiceError>;
    /// Replaces the definition in one step.
    fn write(&self, text: &str) -> Result<(), ServiceError>;
    /// Removes the definition. It is no error if there is none.
    fn remove(&self) -> Result<(), ServiceError>;
    /// Returns the state of the service. `running` is the process that runs the interface, if one does.
    fn state(&self, running: Option<u32>) -> Result<State, ServiceError>;
    /// Starts the service.
    fn start(&self) -> Result<(), ServiceError>;
    /// Stops the service, and returns when it has ended.
    fn stop(&self) -> Result<(), ServiceError>;
    /// Returns the setting beside the definition that starts the service with the machine, if it is set.
    fn setting(&self) -> Result<Option<String>, ServiceError> {
        Ok(None)
    }
    /// Reports whether that setting starts it.
    fn is_enabled(&self, _setting: Option<&str>) -> bool {
        true
    }
    /// Returns the value that starts it.
    fn enabling(&self) -> &'static str {
        "YES"
    }
    /// Sets or removes that setting.
    fn set(&self, _setting: Option<&str>) -> Result<(), ServiceError> {
        Ok(())
    }
}

/// What the system says about a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The system holds the service: it runs, or may be started.
    pub is_loaded: bool,
    pub pid: Option<u32>,
    /// The exit code at its last end, where the system remembers it.
    pub last_exit_status: Option<i32>,
}

/// The daemons of this machine.
pub(super) trait Daemons {
    /// Returns the process that runs an interface.
    fn running(&self, interface: &InterfaceName) -> Result<Option<u32>, exit::Error>;
    /// Ends the daemon of an interface, and removes what a crashed daemon left.
    fn take_down(&self, interface: &InterfaceName) -> Result<(), exit::Error>;
}

/// What an installation did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Installed {
    /// The service runs as it is.
    Unchanged,
    Started,
    /// An earlier service of the interface has another definition now.
    Replaced,
}

/// A step of an installation, to be taken back after a failure.
enum Undo {
    RemoveDirectory(PathBuf),
    Start,
    Stop,
    Restore(Option<String>),
    Set(Option<String>),
}

/// A service of an interface.
pub(super) struct Service<'a> {
    pub manager: &'a dyn Manager,
    pub daemons: &'a dyn Daemons,
    pub interface: &'a InterfaceName,
    pub interrupted: &'a dyn Fn() -> bool,
}

impl Service<'_> {
    /// Installs and starts the service.
    ///
    /// # Errors
    /// When a step fails, or the user interrupts the command; the steps before it are taken back.
    pub(super) fn install(&self, weft: &Path, configuration: &Path) -> Result<Installed, ServiceError> {
        let Self { manager, interface, .. } = *self;
        let text = manager.text(text_of(weft)?, text_of(configuration)?);
        let before = manager.read()?;
        let running = self.daemons.running(interface)?;
        let state = manager.state(running)?;
        if let Some(pid) = running.filter(|_| before.is_none() || state.pid != running) {
            return Err(ServiceError::Running { interface: interface.clone(), pid });
        }
        let setting = manager.setting()?;
        let is_same = before.as_ref() == Some(&text);
        if is_same && state.pid.is_some() && manager.is_enabled(setting.as_deref()) {
            return Ok(Installed::Unchanged);
        }
        let mut done = Vec::new();
        let result = (|| {
            self.make_log_directory(&mut done)?;
            if !is_same {
                if state.is_loaded {
                    done.push(Undo::Start);
                    manager.stop()?;
                    self.go_on()?;
                }
                done.push(Undo::Restore(before.clone()));
                manager.write(&text)?;
                self.go_on()?;
            }
            if !manager.is_enabled(setting.as_deref()) {
                done.push(Undo::Set(setting.clone()));
                manager.set(Some(manager.enabling()))?;
                self.go_on()?;
            }
            if is_same && state.pid.is_some() {
                return Ok(());
            }
            done.push(Undo::Stop);
            manager.start()?;
            self.go_on()
        })();
        if let Err(error) = result {
            for step in done.into_iter().rev() {
                if let Err(error) = self.undo(step) {
                    tracing::warn!("while undoing the installation: {error}");
                }
            }
            return Err(error);
        }
        Ok(if before.is_some() && !is_same { Installed::Replaced } else { Installed::Started })
    }

    /// Fails if the user has interrupted the command.
    fn go_on(&self) -> Result<(), ServiceError> {
        if (self.interrupted)() { Err(ServiceError::Interrupted) } else { Ok(()) }
    }

    fn make_log_directory(&self, done: &mut Vec<Undo>) -> Result<(), ServiceError> {
        let Some(directory) = self.manager.log().parent() else { return Ok(()) };
        match fs::create_dir(directory) {
            Ok(()) => done.push(Undo::RemoveDirectory(directory.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(ServiceError::File { action: "make", path: directory.to_owned(), error });
            }
        }
        Ok(())
    }

    /// Takes a step back. It may not have been done, or half.
    fn undo(&self, step: Undo) -> Result<(), ServiceError> {
        let manager = self.manager;
        let state = || manager.state(self.daemons.running(self.interface)?);
        match step {
            Undo::RemoveDirectory(directory) => {
                // Stays if something was logged: the log says why the service did not start.
                let _ = fs::remove_dir(directory);
                Ok(())
            }
            Undo::Start if state()?.pid.is_some() => Ok(()),
            Undo::Start => manager.start(),
            Undo::Stop if state()?.is_loaded => manager.stop(),
            Undo::Stop => Ok(()),
            Undo::Restore(Some(text)) => manager.write(&text),
            Undo::Restore(None) => manager.remove(),
            Undo::Set(setting) if manager.setting()? == setting => Ok(()),
            Undo::Set(setting) => manager.set(setting.as_deref()),
        }
    }

    /// Takes the interface down, and removes the service. Returns whether there was anything of it.
    ///
    /// # Errors
    /// When a step fails; the command can be repeated.
    pub(super) fn remove(&self) -> Result<bool, ServiceError> {
        let manager = self.manager;
        let before = manager.read()?;
        let state = manager.state(self.daemons.running(self.interface)?)?;
        let setting = manager.setting()?;
        if before.is_none() && !state.is_loaded && setting.is_none() {
            return Ok(false);
        }
        if state.is_loaded {
            manager.stop()?;
        }
        // What a daemon that crashed, or was killed, has left.
        if before.is_some() || state.is_loaded {
            self.daemons.take_down(self.interface)?;
        }
        if setting.is_some() {
            manager.set(None)?;
        }
        manager.remove()?;
        if let Some(directory) = manager.log().parent() {
            // Stays where it has a log, of this service or of another.
            let _ = fs::remove_dir(directory);
        }
        Ok(true)
    }

    /// Returns what is known of the service.
    ///
    /// # Errors
    /// When its definition is not weft's, or the system does not answer.
    pub(super) fn report(&self) -> Result<Report, ServiceError> {
        let manager = self.manager;
        let is_installed = manager.read()?.is_some();
        let state = manager.state(self.daemons.running(self.interface)?)?;
        Ok(Report {
            interface: self.interface.to_string(),
            service: manager.name().to_owned(),
            file: manager.file().to_owned(),
            log: manager.log().to_owned(),
            installed: is_installed,
            enabled: is_installed && manager.is_enabled(manager.setting()?.as_deref()),
            running: state.pid.is_some(),
            pid: state.pid,
            last_exit_status: state.last_exit_status,
        })
    }
}

/// The state of a service, as `weft service status --json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub interface: String,
    pub service: String,
    pub file: PathBuf,
    pub log: PathBuf,
    pub installed: bool,
    pub enabled: bool,
    pub running: bool,
    pub pid: Option<u32>,
    pub last_exit_status: Option<i32>,
}

impl Report {
    /// Returns the lines for people.
    pub(super) fn text(&self) -> String {
        let installed = match (self.installed, self.enabled) {
            (false, _) => "not installed",
            (true, false) => "installed, not started with the machine",
            (true, true) => "installed",
        };
        let pid = self.pid.map_or("not running".to_owned(), |pid| format!("running, process {pid}"));
        let mut text = format!("{}: {installed}, {pid}\n", self.service);
        text += &format!("file: {}\nlog: {}\n", self.file.display(), self.log.display());
        if let Some(status) = self.last_exit_status {
            text += &format!("last exit status: {status}\n");
        }
        text
    }

    /// Returns an error for a service that does not run.
    pub(super) fn outcome(&self) -> Result<(), ServiceError> {
        let not = |state| Err(ServiceError::Not { service: self.service.clone(), state });
        match (self.installed, self.running) {
            (false, _) => not("installed"),
            (true, false) => not("running"),
            (true, true) => Ok(()),
        }
    }
}

/// Returns the path as text that every definition can carry.
fn text_of(path: &Path) -> Result<&str, ServiceError> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control));
    text.ok_or_else(|| ServiceError::Path { path: path.to_owned() })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "lifecycle_tests.rs"]
mod tests;
