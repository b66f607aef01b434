//! Why a service could not be installed, removed or asked.

use std::io;
use std::path::PathBuf;

use weft_config::InterfaceName;
use weft_config::exit::{self, Code};

#[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
/// A comment of every file. Without two hyphens, which end a comment of XML.
pub(super) const MARKER: &str = "Made by `weft service install`. `weft service remove` removes it.";

#[cfg(any(windows, all(test, target_os = "linux")))]
/// ERROR_ACCESS_DENIED.
const ACCESS_DENIED: i32 = 5;
#[cfg(any(windows, all(test, target_os = "linux")))]
/// ERROR_SERVICE_MARKED_FOR_DELETE.
const MARKED_FOR_DELETE: i32 = 1072;

#[cfg(any(windows, all(test, target_os = "linux")))]
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(ACCESS_DENIED) => "; run the command as an administrator",
        Some(MARKED_FOR_DELETE) => "; close the windows that show services, and repeat the command",
        _ => "",
    }
}

/// Returns the exit code of a command for that of the service that it started.
#[cfg(any(windows, all(test, target_os = "linux")))]
fn code_of(status: u32) -> Code {
    [Code::Usage, Code::Permission, Code::Configuration]
        .into_iter()
        .find(|code| *code as u32 == status)
        .unwrap_or(Code::Failure)
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
    #[error("{}: not weft's, which has the line `{MARKER}`: move the file away first", .file.display())]
    Foreign { file: PathBuf },
    #[error("{}: cannot {action}: {error}", .path.display())]
    File { action: &'static str, path: PathBuf, error: io::Error },
    #[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
    #[error("cannot run `{command}`: {error}")]
    Spawn { command: String, error: io::Error },
    #[cfg(any(target_os = "macos", target_os = "freebsd", all(test, target_os = "linux")))]
    #[error("`{command}` ended with {status}{said}")]
    Program { command: String, status: String, said: String },
    #[error(
        "{path:?}: no service can name this path: it is not UTF-8, or has a control character; rename it"
    )]
    Path { path: PathBuf },
    #[cfg(any(target_os = "macos", all(test, target_os = "linux")))]
    #[error("{interface}: macOS names interfaces `utun` and a number: rename the file, as in utun7.conf")]
    Name { interface: InterfaceName },
    #[error("weft runs {interface} already, as process {pid}: end it with `weft down {interface}`")]
    Running { interface: InterfaceName, pid: u32 },
    #[cfg(any(target_os = "macos", windows, all(test, target_os = "linux")))]
    #[error("{service} has not ended within {seconds} s")]
    NotEnding { service: String, seconds: u64 },
    #[error("{service} is not {state}")]
    Not { service: String, state: &'static str },
    #[error("interrupted: everything is as it was before")]
    Interrupted,
    #[cfg(any(windows, all(test, target_os = "linux")))]
    #[error("cannot {action} the service {service}: {error}{}", hint(error))]
    Call { action: &'static str, service: String, error: io::Error },
    #[cfg(any(windows, all(test, target_os = "linux")))]
    #[error(
        "the service {service} runs `{command}`, which is not weft for this interface: rename the configuration, or \
         remove that service with `sc.exe delete {service}`"
    )]
    NotWeft { service: String, command: String },
    #[cfg(any(windows, all(test, target_os = "linux")))]
    #[error("{service} ended with status {status}: {said}")]
    Ended { service: String, status: u32, said: String },
    #[cfg(any(windows, all(test, target_os = "linux")))]
    #[error("{service} has not started within {seconds} s; see {}", .log.display())]
    NotStarting { service: String, seconds: u64, log: PathBuf },
    /// An error of the daemon around the service.
    #[error(transparent)]
    Outside(#[from] exit::Error),
}

impl ServiceError {
    fn exit_code(&self) -> Code {
        match self {
            Self::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => Code::Permission,
            #[cfg(any(target_os = "macos", all(test, target_os = "linux")))]
            Self::Name { .. } => Code::Usage,
            #[cfg(any(windows, all(test, target_os = "linux")))]
            Self::Call { error, .. } if error.raw_os_error() == Some(ACCESS_DENIED) => Code::Permission,
            #[cfg(any(windows, all(test, target_os = "linux")))]
            Self::Ended { status, .. } => code_of(*status),
            Self::Outside(error) => error.code(),
            _ => Code::Failure,
        }
    }
}

impl From<ServiceError> for exit::Error {
    fn from(error: ServiceError) -> Self {
        Self::new(error.exit_code(), error)
    }
}
