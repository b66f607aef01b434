//! Windows: a service of the service control manager, which runs `weft --service NAME up FILE`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use weft_config::InterfaceName;

use super::error::ServiceError;
use super::lifecycle::{Manager, State};
use crate::service_manager::name_of;

#[cfg(windows)]
mod calls;
mod command_line;
#[cfg(test)]
#[cfg(target_os = "linux")]
pub(super) mod fake;

#[cfg(windows)]
pub(super) use calls::{Calls, may_change};

/// How long a service may take to start or to end, in seconds: longer than `weft down` waits, and than names
/// are looked up at the start.
const PATIENCE: u64 = 300;
/// The pause between two questions for the state of a service.
const PAUSE: Duration = Duration::from_millis(50);

/// ERROR_SERVICE_ALREADY_RUNNING.
const ALREADY_RUNNING: i32 = 1056;
/// ERROR_SERVICE_NOT_ACTIVE.
const NOT_ACTIVE: i32 = 1062;
/// ERROR_SERVICE_NEVER_STARTED, the exit code until the first start.
const NEVER_STARTED: u32 = 1077;

/// The calls of the service control manager for one service.
pub(super) trait ServiceControl {
    /// Returns the settings; `None` if there is no such service.
    fn settings(&self) -> io::Result<Option<Settings>>;
    /// Makes the service, which nothing starts yet.
    fn create(&self, command: &[String]) -> io::Result<()>;
    /// Replaces the settings.
    fn change(&self, command: &[String], start: Start) -> io::Result<()>;
    /// Sets what a service works without, and returns what the system refuses.
    fn refine(&self) -> Vec<(&'static str, io::Error)>;
    /// Removes the service.
    fn delete(&self) -> io::Result<()>;
    /// Returns what the service does.
    fn phase(&self) -> io::Result<Phase>;
    /// Starts the service, and does not wait for it.
    fn start(&self) -> io::Result<()>;
    /// Asks the service to stop, and does not wait for it.
    fn stop(&self) -> io::Result<()>;
}

/// The settings of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The command line.
    pub command: String,
    pub start: Start,
}

/// What starts a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The machine, when it starts.
    Auto,
    /// A user or a program.
    Demand,
    /// Nothing.
    Disabled,
}

impl Start {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Auto, "auto"), (Self::Demand, "demand"), (Self::Disabled, "disabled")];

    /// Returns the word that sc.exe has for it.
    pub(super) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(start, _)| *start == self).map_or("", |(_, word)| word)
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == word).map(|(start, _)| *start)
    }
}

/// What a service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Starting,
    /// As this process.
    Running(u32),
    Ending,
    /// With this exit code.
    Stopped(u32),
}

/// The service of an interface.
pub(super) struct Windows<C> {
    calls: C,
    name: String,
    interface: InterfaceName,
    key: PathBuf,
    log: PathBuf,
    interrupted: Box<dyn Fn() -> bool>,
    /// The command of weft that the service runs, before the configuration.
    command: &'static [&'static str],
}

impl<C: ServiceControl> Windows<C> {
    /// Returns the service of an interface, with a log in this directory.
    pub(super) fn new(
        calls: impl FnOnce(&str, &InterfaceName) -> C,
        logs: &Path,
        interface: &InterfaceName,
        interrupted: impl Fn() -> bool + 'static,
    ) -> Self {
        let name = name_of(interface.as_str());
        Self {
            calls: calls(&name, interface),
            interface: interface.clone(),
            key: PathBuf::from(format!(r"HKEY_LOCAL_MACHINE\SYSTEM\CurrentControlSet\Services\{name}")),
            log: logs.join(format!("{interface}.log")),
            interrupted: Box::new(interrupted),
            command: &["up"],
            name,
        }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> ServiceError {
        let service = self.name.clone();
        move |error| ServiceError::Call { action, service, error }
    }

    fn settings(&self) -> Result<Option<Settings>, ServiceError> {
        self.calls.settings().map_err(self.failed("read the settings of"))
    }

    fn phase(&self) -> Result<Phase, ServiceError> {
        self.calls.phase().map_err(self.failed("read the state of"))
    }

    /// Returns the words of a command line, if it is one that weft has made for this interface.
    fn own(&self, command: &str) -> Option<Vec<String>> {
        let words = command_line::words(command);
        let [program, option, name, ..] = &words[..] else { return None };
        // Not `Path::file_name`, which knows no backslash on other systems.
        let file = program.rsplit(['\\', '/']).next().unwrap_or_default();
        let is_weft = file.eq_ignore_ascii_case("weft.exe") && option == OPTION;
        (is_weft && name == self.interface.as_str()).then_some(words)
    }

    /// Returns what a service that did not start has logged last, since its log had this size.
    fn said(&self, since: u64) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let new = usize::try_from(since).ok().and_then(|since| log.get(since..)).unwrap_or(&log);
        let text = String::from_utf8_lossy(new);
        let error = text.lines().filter_map(|line| line.strip_prefix("error: ")).next_back();
        let error = error.map(|error| format!("{}; ", error.trim()));
        format!("{}see {}", error.unwrap_or_default(), self.log.display())
    }
}

/// The option of weft by which the service control manager runs it.
const OPTION: &str = "--service";

impl<C: ServiceControl> Manager for Windows<C> {
    fn name(&self) -> &str {
        &self.name
    }

    fn file(&self) -> &Path {
        &self.key
    }

    fn log(&self) -> &Path {
        &self.log
    }

    fn text(&self, weft: &str, configuration: &str) -> String {
        let words = [weft, OPTION, self.interface.as_str()];
        command_line::of(&[&words, self.command, &[configuration]].concat())
    }

    fn read(&self) -> Result<Option<String>, ServiceError> {
        let Some(Settings { command, .. }) = self.settings()? else { return Ok(None) };
        match self.own(&command) {
            Some(words) => Ok(Some(command_line::of(&words))),
            None => Err(ServiceError::NotWeft { service: self.name.clone(), command }),
        }
    }

    fn write(&self, text: &str) -> Result<(), ServiceError> {
        let words = command_line::words(text);
        match self.settings()? {
            None => self.calls.create(&words).map_err(self.failed("make"))?,
            Some(Settings { start, .. }) => {
                self.calls.change(&words, start).map_err(self.failed("change"))?;
            }
        }
        for (what, error) in self.calls.refine() {
            tracing::warn!("{}: the system does not set {what}: {error}", self.name);
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), ServiceError> {
        if self.settings()?.is_none() {
            return Ok(());
        }
        self.calls.delete().map_err(self.failed("remove"))
    }

    fn state(&self, _running: Option<u32>) -> Result<State, ServiceError> {
        if self.settings()?.is_none() {
            return Ok(State::default());
        }
        let phase = self.phase()?;
        Ok(State {
            is_loaded: !matches!(phase, Phase::Stopped(_)),
            pid: if let Phase::Running(pid) = phase { Some(pid) } else { None },
            last_exit_status: match phase {
                Phase::Stopped(code) if code != NEVER_STARTED => i32::try_from(code).ok(),
                _ => None,
            },
        })
    }

    /// Waits until the interface is up.
    fn start(&self) -> Result<(), ServiceError> {
        let since = fs::metadata(&self.log).map_or(0, |log| log.len());
        let was_interrupted = (self.interrupted)();
        let end = Instant::now() + Duration::from_secs(PATIENCE);
        // A service that is ending cannot be started, and ends.
        while self.phase()? == Phase::Ending && Instant::now() < end {
            thread::sleep(PAUSE);
        }
        match self.calls.start() {
            Err(error) if error.raw_os_error() == Some(ALREADY_RUNNING) => {}
            other => other.map_err(self.failed("start"))?,
        }
        loop {
            match self.phase()? {
                Phase::Running(_) => return Ok(()),
                Phase::Stopped(status) => {
                    return Err(ServiceError::Ended {
                        service: self.name.clone(),
                        status,
                        said: self.said(since),
                    });
                }
                Phase::Starting | Phase::Ending if Instant::now() < end => {}
                Phase::Starting | Phase::Ending => {
                    return Err(ServiceError::NotStarting {
                        service: self.name.clone(),
                        seconds: PATIENCE,
                        log: self.log.clone(),
                    });
                }
            }
            if !was_interrupted && (self.interrupted)() {
                return Err(ServiceError::Interrupted);
            }
            thread::sleep(PAUSE);
        }
    }

    /// A service that starts takes no request to stop until it runs.
    fn stop(&self) -> Result<(), ServiceError> {
        let end = Instant::now() + Duration::from_secs(PATIENCE);
        let mut is_asked = false;
        loop {
            match self.phase()? {
                Phase::Stopped(_) => return Ok(()),
                Phase::Running(_) if !is_asked => {
                    is_asked = true;
                    match self.calls.stop() {
                        Err(error) if error.raw_os_error() == Some(NOT_ACTIVE) => {}
                        other => other.map_err(self.failed("stop"))?,
                    }
                    continue;
                }
                _ if Instant::now() >= end => {
                    return Err(ServiceError::NotEnding { service: self.name.clone(), seconds: PATIENCE });
                }
                _ => thread::sleep(PAUSE),
            }
        }
    }

    fn setting(&self) -> Result<Option<String>, ServiceError> {
        Ok(self.settings()?.map(|settings| settings.start.word().to_owned()))
    }

    fn is_enabled(&self, setting: Option<&str>) -> bool {
        setting == Some(self.enabling())
    }

    fn enabling(&self) -> &'static str {
        Start::Auto.word()
    }

    fn set(&self, setting: Option<&str>) -> Result<(), ServiceError> {
        let Some(Settings { command, .. }) = self.settings()? else { return Ok(()) };
        let start = setting.and_then(Start::of).unwrap_or(Start::Demand);
        self.calls.change(&command_line::words(&command), start).map_err(self.failed("change"))
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[path = "windows_tests.rs"]
mod tests;
