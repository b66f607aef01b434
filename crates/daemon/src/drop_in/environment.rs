//! The environment variables of wireguard-go.

use std::ffi::OsString;
use std::path::PathBuf;

use weft_config::InterfaceName;
use weft_tun::Descriptor as Queue;
use weft_uapi::Descriptor as Socket;

use crate::background::Output;

#[cfg(unix)]
mod descriptors;

#[cfg(not(unix))]
use crate::unsupported as descriptors;

/// An environment variable cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("{variable}={}: {reason}", value.display())]
pub(super) struct InvalidVariable {
    variable: &'static str,
    value: OsString,
    reason: String,
}

/// The settings from the environment.
pub(super) struct Environment {
    /// The interface's real name: that of the device that was handed in, if any.
    pub(super) name: InterfaceName,
    pub(super) foreground: bool,
    pub(super) queues: Vec<Queue>,
    pub(super) socket: Option<Socket>,
    pub(super) name_file: Option<PathBuf>,
    pub(super) output: Output,
}

impl Environment {
    /// Reads the environment. Call it once: it takes ownership of the descriptors that the environment names.
    pub(super) fn read(name: &InterfaceName) -> Result<Self, InvalidVariable> {
        let tun = handed_in("WG_TUN_FD", descriptors::take_queue)?;
        let (name, queues) = match tun {
            Some((queue, name)) => (name, vec![queue]),
            None => (name.clone(), Vec::new()),
        };
        let wants_log = |level: &OsString| !level.is_empty() && level != "silent";
        let keeps_output = std::env::var_os("LOG_LEVEL").as_ref().is_some_and(wants_log);
        Ok(Self {
            name,
            foreground: std::env::var_os("WG_PROCESS_FOREGROUND").is_some_and(|value| value == "1"),
            queues,
            socket: handed_in("WG_UAPI_FD", descriptors::take_socket)?,
            name_file: set("WG_TUN_NAME_FILE").map(PathBuf::from),
            output: if keeps_output { Output::Kept } else { Output::Discarded },
        })
    }
}

fn set(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

fn handed_in<T>(
    variable: &'static str,
    take: fn(i32) -> Result<T, String>,
) -> Result<Option<T>, InvalidVariable> {
    let Some(value) = set(variable) else { return Ok(None) };
    let number = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let taken = match number.and_then(|text| text.parse().ok()) {
        Some(number) => take(number),
        None => Err("write the number of an open descriptor".to_owned()),
    };
    taken.map(Some).map_err(|reason| InvalidVariable { variable, value, reason })
}

/// Returns the log level that LOG_LEVEL asks for; errors only by default, as wireguard-go does.
pub fn log_level() -> &'static str {
    match std::env::var("LOG_LEVEL").as_deref() {
        Ok("verbose" | "debug") => "debug",
        Ok("silent") => "off",
        _ => "error",
    }
}
