//! The error numbers in answers: those of wireguard-go, which are the system's numbers, negated.

#[cfg_attr(unix, path = "errno/unix.rs")]
#[cfg_attr(not(unix), path = "errno/windows.rs")]
mod platform;

use super::request::Problem;
use crate::ControlError;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// The request succeeded.
    Success,
    /// A key is unknown, or a value is invalid.
    Invalid,
    /// A line does not follow the protocol.
    Protocol,
    /// Another program uses the UDP port.
    PortInUse,
    /// The request could not be read, or the system refused the change.
    Io,
}

impl Errno {
    /// Returns the number after `errno=`. wg(8) negates it and prints the text of that error; it reports a
    /// positive number as unknown.
    pub fn number(self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Invalid => -platform::INVALID,
            Self::Protocol => -platform::PROTOCOL,
            Self::PortInUse => -platform::PORT_IN_USE,
            Self::Io => -platform::IO,
        }
    }
}

impl From<&Problem> for Errno {
    fn from(problem: &Problem) -> Self {
        match problem {
            Problem::NoEquals { .. } => Self::Protocol,
            Problem::UnknownKey { .. } | Problem::Value { .. } | Problem::Trailing => Self::Invalid,
            Problem::LineTooLong { .. } | Problem::TooLong | Problem::Unfinished => Self::Io,
        }
    }
}

impl From<&ControlError> for Errno {
    fn from(error: &ControlError) -> Self {
        match error {
            ControlError::PortInUse(_) => Self::PortInUse,
            _ => Self::Io,
        }
    }
}
