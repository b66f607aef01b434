//! How an answer says what went wrong: wireguard-go's numbers, which are those of the system, negative.

#[cfg_attr(unix, path = "errno/unix.rs")]
#[cfg_attr(not(unix), path = "errno/windows.rs")]
mod platform;

use super::request::Problem;
use crate::ControlError;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errno {
    /// It was done.
    Success,
    /// A key or a value is not known.
    Invalid,
    /// A line is not of the protocol.
    Protocol,
    /// The UDP port belongs to another program.
    PortInUse,
    /// The request could not be read, or the system did not do it.
    Io,
}

impl Errno {
    /// The number behind `errno=`. wg(8) shows the text of its negative, and takes a positive one for unknown.
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
