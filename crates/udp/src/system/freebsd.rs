//! FreeBSD.

use socket2::Socket;

pub(crate) use super::bsd::*;
use crate::BindError;
use crate::sockopt::set_option;

/// Sets the cookie of the socket, which firewalls can match (SO_USER_COOKIE); 0 for none.
pub(crate) fn set_mark(socket: &Socket, mark: u32) -> Result<(), BindError> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_USER_COOKIE, mark.cast_signed()).map_err(|source| {
        BindError::Io { what: format!("set the firewall mark {mark:#x} (SO_USER_COOKIE)"), source }
    })
}
