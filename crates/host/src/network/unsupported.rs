//! The substitute for platforms where weft cannot watch the network yet: [`Watch::start`] fails.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use super::{Change, WatchError, Way};
use crate::routes::Link;

/// Cannot be constructed.
#[derive(Debug)]
pub struct Watch {
    _never: Infallible,
}

impl Watch {
    /// Always an error.
    pub fn start(_: Option<&Link>, _: impl FnMut(Change) + Send + 'static) -> Result<Self, WatchError> {
        Err(WatchError::Unsupported)
    }
}

/// Always an error.
pub fn way_to(_: SocketAddr, _: u32) -> io::Result<Way> {
    Err(io::ErrorKind::Unsupported.into())
}
