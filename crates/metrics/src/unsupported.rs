//! The parts of other modules that need Unix.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use tokio::net::TcpStream;
use weft_config::metrics::Address;
use weft_ipc::Source;

use crate::ListenError;

/// The host name is unknown: other names have to be given on the command line.
pub(crate) fn own_name() -> Option<String> {
    None
}

/// Metrics on a Unix socket.
#[derive(Debug)]
pub(crate) struct LocalListener(Infallible);

pub(crate) struct LocalAcceptor(Infallible);

impl LocalListener {
    pub(crate) fn open(path: &Path) -> Result<Self, ListenError> {
        Err(ListenError::NoLocal(Address::Unix(path.to_owned())))
    }

    pub(crate) fn acceptor(self) -> io::Result<LocalAcceptor> {
        Ok(LocalAcceptor(self.0))
    }
}

impl LocalAcceptor {
    pub(crate) fn accept(&self) -> std::future::Ready<io::Result<(TcpStream, Source)>> {
        match self.0 {}
    }
}
