//! rc(8): a script in /usr/local/etc/rc.d, a variable that sysrc(8) sets, and the calls of service(8).
//!
//! The script starts weft in the background, which returns when the interface is up, or why it is not. rc(8)
//! starts nothing again; daemon(8) with `-r` would do so also after `weft down`, and with a wrong
//! configuration.

use std::path::{Path, PathBuf};

use weft_config::InterfaceName;

use super::error::{MARKER, ServiceError};
use super::file;
use super::lifecycle::{Manager, State};
use super::program;

/// The service of an interface.
pub(super) struct RcD {
    service: PathBuf,
    sysrc: PathBuf,
    interface: InterfaceName,
    name: String,
    file: PathBuf,
    log: PathBuf,
}

impl RcD {
    /// Returns the service of an interface, with the programs and the script in these directories.
    pub(super) fn new(programs: &Path, scripts: &Path, logs: &Path, interface: &InterfaceName) -> Self {
        let name = format!("weft_{}", identifier(interface));
        Self {
            service: programs.join("service"),
            sysrc: programs.join("sysrc"),
            interface: interface.clone(),
            file: scripts.join(&name),
            log: logs.join(format!("{interface}.log")),
            name,
        }
    }

    fn variable(&self) -> String {
        format!("{}_enable", self.name)
    }
}

impl Manager for RcD {
    fn name(&self) -> &str {
        &self.name
    }

    fn file(&self) -> &Path {
        &self.file
    }

    fn log(&self) -> &Path {
        &self.log
    }

    fn text(&self, weft: &str, configuration: &str) -> String {
        let (name, interface) = (&self.name, &self.interface);
        let [weft, configuration] = [weft, configuration].map(quoted);
        let log = quoted(&self.log.to_string_lossy());
        // `$weft_…` are set after rc.conf is read, which cannot change them.
        format!(
            r#"#!/bin/sh
#
# PROVIDE: {name}
# REQUIRE: NETWORKING
# KEYWORD: shutdown
#
# {MARKER}

. /etc/rc.subr

name="{name}"
desc="WireGuard interface {interface}"
rcvar="{name}_enable"
extra_commands="reload status"
start_cmd="weft_start"
stop_cmd="weft_stop"
reload_cmd="weft_reload"
status_cmd="weft_status"

load_rc_config "$name"
: "${{{name}_enable:=NO}}"

weft_program={weft}
weft_configuration={configuration}
weft_log={log}

weft_start()
{{
	(
		umask 077
		mkdir -p "${{weft_log%/*}}" &&
			exec "$weft_program" up --daemon "$weft_configuration" </dev/null >>"$weft_log" 2>&1
	) && return
	weft_code=$?
	warn "$name: the interface did not come up; see $weft_log"
	return "$weft_code"
}}

weft_stop()
{{
	"$weft_program" down "$weft_configuration"
}}

weft_reload()
{{
	"$weft_program" reload "$weft_configuration"
}}

weft_status()
{{
	"$weft_program" service status "$weft_configuration"
}}

run_rc_command "$1"
"#
        )
    }

    fn read(&self) -> Result<Option<String>, ServiceError> {
        file::read(&self.file)
    }

    fn write(&self, text: &str) -> Result<(), ServiceError> {
        file::write(&self.file, text, 0o755)
    }

    fn remove(&self) -> Result<(), ServiceError> {
        file::remove(&self.file)
    }

    fn state(&self, running: Option<u32>) -> Result<State, ServiceError> {
        let pid = running.filter(|_| self.file.exists());
        Ok(State { is_loaded: pid.is_some(), pid, last_exit_status: None })
    }

    fn start(&self) -> Result<(), ServiceError> {
        program::run(&self.service, &[&self.name, "start"]).map(drop)
    }

    /// `onestop` also ends a service after its variable was set to NO.
    fn stop(&self) -> Result<(), ServiceError> {
        program::run(&self.service, &[&self.name, "onestop"]).map(drop)
    }

    fn setting(&self) -> Result<Option<String>, ServiceError> {
        let said = program::run(&self.sysrc, &["-n", "-i", "-q", &self.variable()])?;
        Ok(Some(said.trim().to_owned()).filter(|value| !value.is_empty()))
    }

    fn is_enabled(&self, setting: Option<&str>) -> bool {
        let setting = setting.unwrap_or_default().to_ascii_lowercase();
        ["yes", "true", "on", "1"].contains(&setting.as_str())
    }

    fn set(&self, setting: Option<&str>) -> Result<(), ServiceError> {
        let variable = self.variable();
        match setting {
            Some(value) => program::run(&self.sysrc, &[&format!("{variable}={value}")]),
            None => program::run(&self.sysrc, &["-x", &variable]),
        }
        .map(drop)
    }
}

/// Returns the interface's name as a part of a variable of sh(1): letters and digits stay, an underscore is
/// doubled, and every other byte is an underscore and two hexadecimal digits. No two names give the same.
fn identifier(interface: &InterfaceName) -> String {
    let part = |byte: u8| match byte {
        b'_' => "__".to_owned(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("_{byte:02x}"),
    };
    interface.as_str().bytes().map(part).collect()
}

/// Returns the text as one word of sh(1).
fn quoted(text: &str) -> String {
    weft_config::shell_word(text.as_ref()).to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "rc_d_tests.rs"]
mod tests;
