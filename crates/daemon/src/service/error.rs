//! Why a service could not be installed, removed or asked.

use std::io;
use std::path::PathBuf;

use weft_config::InterfaceName;
use weft_config::exit::{self, Code};

use super::file::MARKER;

#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("{}: not weft's, which has the line `{MARKER}`: move the file away first", .file.display())]
    Foreign { file: PathBuf },
    #[error("{}: cannot {action}: {error}", .path.display())]
    File { action: &'static str, path: PathBuf, error: io::Error },
    #[error("cannot run `{command}`: {error}")]
    Spawn { command: String, error: io::Error },
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
    #[cfg(any(target_os = "macos", all(test, target_os = "linux")))]
    #[error("{service} has not ended within {seconds} s")]
    NotEnding { service: String, seconds: u64 },
    #[error("{service} is not {state}")]
    Not { service: String, state: &'static str },
    /// An error of the daemon around the service.
    #[error(transparent)]
    Outside(#[from] exit::Error),
}

impl ServiceError {
    fn exit_code(&self) -> Code {
        match self {
            Self::File { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => Code::Permission,
            #[cfg(any(target_os = "macos", all(test, target_os = "linux")))]
            Self::Name { .. } => Code::Configuration,
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
