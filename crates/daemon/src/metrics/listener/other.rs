//! Platforms without Unix sockets.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use tokio::net::TcpStream;
use weft_config::metrics::Address;
use weft_ipc::Source;

use super::ListenError;

#[derive(Debug)]
pub(in super::super) struct LocalListener(Infallible);

pub(in super::super) struct LocalAcceptor(Infallible);

impl LocalListener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        Err(ListenError::NoLocal(Address::Unix(path.to_owned())))
    }

    pub(in super::super) fn acceptor(self) -> io::Result<LocalAcceptor> {
        Ok(LocalAcceptor(self.0))
    }
}

impl LocalAcceptor {
    pub(in super::super) fn accept(&self) -> std::future::Ready<io::Result<(TcpStream, Source)>> {
        match self.0 {}
    }
}
