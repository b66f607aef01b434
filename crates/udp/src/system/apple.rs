//! macOS and iOS.

use socket2::Socket;

pub(crate) use super::bsd::*;
use crate::BindError;

/// Packets have no mark here.
pub(crate) fn set_mark(_: &Socket, mark: u32) -> Result<(), BindError> {
    if mark == 0 { Ok(()) } else { Err(BindError::FwmarkUnavailable { mark, system: std::env::consts::OS }) }
}
