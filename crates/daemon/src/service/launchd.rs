//! launchd(8): a property list in /Library/LaunchDaemons, and the calls of launchctl(1).
//!
//! launchd starts a service again after every status but 0, with 10 s between two starts. It cannot
//! distinguish a wrong configuration from a crash, so `weft up --launchd` ends with 0 where a restart does
//! not help.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use weft_config::InterfaceName;

use super::error::{MARKER, ServiceError};
use super::file;
use super::lifecycle::{Manager, State};
use super::program;

/// How long launchd waits for the end before it kills, in seconds: as long as `weft down` waits.
const EXIT_TIMEOUT: u64 = 90;
/// How long a service may take to end, in seconds: launchd has killed it by then.
const PATIENCE: u64 = EXIT_TIMEOUT + 10;
/// The pause between two questions whether a service has ended.
const PAUSE: Duration = Duration::from_millis(50);
/// How long launchd may refuse to load a service again after it has forgotten it: about 5 s were seen.
const SETTLING: Duration = Duration::from_secs(15);
/// The statuses of launchctl meanwhile (EIO, EALREADY). Wrong files have the first one, too.
const UNSETTLED: [i32; 2] = [5, 37];
/// The status of launchctl for a service that is not loaded.
const NOT_FOUND: i32 = 113;

/// The service of an interface.
pub(super) struct Launchd {
    launchctl: PathBuf,
    label: String,
    file: PathBuf,
    log: PathBuf,
    /// Until when the service settles after a stop.
    settled: Cell<Option<Instant>>,
}

impl Launchd {
    /// Returns the service of an interface, with a file in this directory and a log in that one.
    ///
    /// # Errors
    /// [`ServiceError::Name`] for a name that macOS does not allow: the service would start in vain for ever.
    pub(super) fn new(
        launchctl: PathBuf,
        daemons: &Path,
        logs: &Path,
        interface: &InterfaceName,
    ) -> Result<Self, ServiceError> {
        if !weft_host::routes::is_utun(interface.as_str()) {
            return Err(ServiceError::Name { interface: interface.clone() });
        }
        let label = format!("weft.{interface}");
        let file = daemons.join(format!("{label}.plist"));
        Ok(Self {
            launchctl,
            label,
            file,
            log: logs.join(format!("{interface}.log")),
            settled: Cell::new(None),
        })
    }

    fn target(&self) -> String {
        format!("system/{}", self.label)
    }
}

impl Manager for Launchd {
    fn name(&self) -> &str {
        &self.label
    }

    fn file(&self) -> &Path {
        &self.file
    }

    fn log(&self) -> &Path {
        &self.log
    }

    fn text(&self, weft: &str, configuration: &str) -> String {
        let [label, weft, configuration] = [&self.label, weft, configuration].map(escaped);
        let log = escaped(&self.log.to_string_lossy());
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- {MARKER} -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>{label}</string>
	<key>ProgramArguments</key>
	<array>
		<string>{weft}</string>
		<string>up</string>
		<string>--launchd</string>
		<string>{configuration}</string>
	</array>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ThrottleInterval</key>
	<integer>10</integer>
	<key>ExitTimeOut</key>
	<integer>{EXIT_TIMEOUT}</integer>
	<key>ProcessType</key>
	<string>Interactive</string>
	<key>Umask</key>
	<integer>63</integer>
	<key>StandardOutPath</key>
	<string>{log}</string>
	<key>StandardErrorPath</key>
	<string>{log}</string>
</dict>
</plist>
"#
        )
    }

    fn read(&self) -> Result<Option<String>, ServiceError> {
        file::read(&self.file)
    }

    fn write(&self, text: &str) -> Result<(), ServiceError> {
        // launchd refuses a file that others can write.
        file::write(&self.file, text, 0o644)
    }

    fn remove(&self) -> Result<(), ServiceError> {
        file::remove(&self.file)
    }

    fn state(&self, _running: Option<u32>) -> Result<State, ServiceError> {
        let arguments = ["print", &self.target()];
        let output = program::output(&self.launchctl, &arguments)?;
        if output.status.code() == Some(NOT_FOUND) {
            return Ok(State::default());
        }
        if !output.status.success() {
            return Err(program::failed(&self.launchctl, &arguments, &output));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        // The service's own lines are indented once, those of its parts more.
        let value = |key: &str| {
            let line = |line: &'_ str| -> Option<String> {
                Some(line.strip_prefix('\t')?.strip_prefix(key)?.strip_prefix(" = ")?.trim().to_owned())
            };
            said.lines().find_map(line)
        };
        match value("path") {
            Some(path) if Path::new(&path) != self.file => {
                return Err(ServiceError::Foreign { file: path.into() });
            }
            _ => {}
        }
        let number = |text: String| text.split(':').next().and_then(|number| number.trim().parse().ok());
        Ok(State {
            is_loaded: true,
            pid: value("pid").and_then(|pid| pid.parse().ok()),
            last_exit_status: value("last exit code").and_then(number),
        })
    }

    fn start(&self) -> Result<(), ServiceError> {
        let target = self.target();
        // Loaded and ended: a configuration was wrong, or `weft down` ended it.
        if self.state(None)?.is_loaded {
            return program::run(&self.launchctl, &["kickstart", &target]).map(drop);
        }
        let arguments = ["bootstrap", "system", &self.file.to_string_lossy()];
        loop {
            let output = program::output(&self.launchctl, &arguments)?;
            if output.status.success() {
                return Ok(());
            }
            let may_settle = output.status.code().is_some_and(|code| UNSETTLED.contains(&code));
            if !may_settle || self.settled.get().is_none_or(|settled| Instant::now() >= settled) {
                return Err(program::failed(&self.launchctl, &arguments, &output));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Waits until launchd has forgotten the service: before that it refuses to load it again.
    fn stop(&self) -> Result<(), ServiceError> {
        const IN_PROGRESS: i32 = 36;
        let arguments = ["bootout", &self.target()];
        let output = program::output(&self.launchctl, &arguments)?;
        let is_ending = output.status.success() || output.status.code() == Some(IN_PROGRESS);
        let end = Instant::now() + Duration::from_secs(PATIENCE);
        while self.state(None)?.is_loaded {
            if !is_ending {
                return Err(program::failed(&self.launchctl, &arguments, &output));
            }
            if Instant::now() >= end {
                return Err(ServiceError::NotEnding { service: self.label.clone(), seconds: PATIENCE });
            }
            thread::sleep(PAUSE);
        }
        self.settled.set(Some(Instant::now() + SETTLING));
        Ok(())
    }
}

/// Returns the text as the content of an element.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
#[path = "launchd_tests.rs"]
mod tests;
