//! The exit codes of the `weft` program.

use std::fmt;
use std::io;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::{ConfigErrors, LoadError};

/// An exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Code {
    /// The command succeeded.
    Success = 0,
    /// Something failed while running.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A permission is missing (sysexits.h: EX_NOPERM).
    Permission = 77,
    /// The configuration is wrong (sysexits.h: EX_CONFIG), or its interface is up already: another start
    /// fails in the same way.
    Configuration = 78,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// An error that ends a command, with its exit code. The message may have several lines.
#[derive(Debug)]
pub struct Error {
    code: Code,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

impl Error {
    /// Makes an error from its exit code and its cause.
    pub fn new(code: Code, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { code, cause: cause.into() }
    }

    /// Returns the exit code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the cause, if it is of this type.
    pub fn cause<T: std::error::Error + 'static>(&self) -> Option<&T> {
        self.cause.downcast_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl std::error::Error for Error {}

impl Code {
    /// Reports whether another start would fail in the same way.
    pub fn is_lasting(self) -> bool {
        !matches!(self, Self::Success | Self::Failure)
    }

    /// Returns the exit code for a configuration that cannot be used. `is_denied`: missing permissions are
    /// the only errors.
    pub fn of_configuration(is_denied: bool) -> Self {
        if is_denied { Self::Permission } else { Self::Configuration }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        let code = match error {
            // No file has this name.
            LoadError::Interface(_) => Code::Usage,
            _ => Code::of_configuration(error.is_permission_denied()),
        };
        Self::new(code, error)
    }
}

impl From<ConfigErrors> for Error {
    fn from(errors: ConfigErrors) -> Self {
        Self::new(Code::of_configuration(errors.is_permission_denied()), errors)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let permission = error.kind() == io::ErrorKind::PermissionDenied;
        Self::new(if permission { Code::Permission } else { Code::Failure }, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_read_or_written_is_a_missing_permission() {
        for (kind, code) in [
            (io::ErrorKind::PermissionDenied, Code::Permission),
            (io::ErrorKind::NotFound, Code::Failure),
            (io::ErrorKind::StorageFull, Code::Failure),
        ] {
            assert_eq!(Error::from(io::Error::from(kind)).code(), code, "{kind}");
        }
    }
}
