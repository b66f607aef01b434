//! The error numbers in answers: those of wireguard-go, negated.

#[cfg(feature = "sockets")]
use std::io;

#[cfg_attr(unix, path = "errno/unix.rs")]
#[cfg_attr(not(unix), path = "errno/windows.rs")]
mod platform;
// Its numbers are the same everywhere, so that it is tested everywhere.
#[cfg(all(test, unix))]
#[path = "errno/windows.rs"]
mod windows;

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

/// Returns the error that a number in an answer stands for. wireguard-go answers with negative numbers,
/// boringtun with positive ones.
#[cfg(feature = "sockets")]
pub(crate) fn error_of(number: i32) -> io::Error {
    platform::error(number.saturating_abs())
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn windows_has_the_numbers_of_linux() {
        let numbers = [Errno::Invalid, Errno::Protocol, Errno::PortInUse, Errno::Io].map(Errno::number);
        assert_eq!(numbers, [-22, -71, -98, -5]);
        assert_eq!(
            numbers,
            [windows::INVALID, windows::PROTOCOL, windows::PORT_IN_USE, windows::IO].map(|number| -number)
        );
        for number in [windows::INVALID, windows::PORT_IN_USE] {
            assert_eq!(windows::error(number).kind(), error_of(-number).kind(), "{number}");
        }
        assert_eq!(windows::error(1234).to_string(), "error 1234 of Linux");
    }
}
