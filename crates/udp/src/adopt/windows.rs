//! No process hands sockets over here.

use std::convert::Infallible;
use std::io;

use socket2::Socket;

use super::{BindError, SocketFacts, UdpConfig};

/// The descriptor of a socket of another process, which cannot exist on this system.
pub type Descriptor = Infallible;

/// Returns the properties of a socket that was handed in.
pub fn check_socket(descriptor: &Descriptor) -> Result<SocketFacts, String> {
    match *descriptor {}
}

pub(crate) fn sort(_: Vec<Descriptor>, _: &UdpConfig) -> Result<(Vec<Socket>, Vec<Socket>), BindError> {
    Err(BindError::NoAddressFamily)
}

/// Always returns `None`.
pub(crate) fn duplicate(_: &Socket) -> Option<io::Result<Descriptor>> {
    None
}
