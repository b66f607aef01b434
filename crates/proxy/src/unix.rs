//! Unix sockets as ends of a proxy.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};
use weft_ipc::listener::{self, ListenError, SocketFile};
use weft_network::{Connection, Later, Listener, Stream};

/// A directory that is made for the socket is for its owner alone.
const DIRECTORY_MODE: u32 = 0o700;

struct UnixAcceptor {
    /// Removes the file at the end, before the socket is closed.
    _file: SocketFile,
    socket: UnixListener,
}

/// Listens on a path, for this user only. Replaces the socket of a proxy that has ended.
pub(crate) fn listen(path: &Path) -> io::Result<Box<dyn Listener>> {
    let (socket, file) = listener::listen(path, DIRECTORY_MODE).map_err(|error| match error {
        ListenError::Served { .. } => io::ErrorKind::AddrInUse.into(),
        error => io::Error::new(error.kind(), error),
    })?;
    Ok(Box::new(UnixAcceptor { socket: UnixListener::from_std(socket)?, _file: file }))
}

/// Connects to the socket at a path.
pub(crate) async fn connect(path: &Path) -> io::Result<Box<dyn Connection>> {
    Ok(Box::new(Stream::from(UnixStream::connect(path).await?)))
}

impl Listener for UnixAcceptor {
    fn accept(&self) -> Later<'_, io::Result<Box<dyn Connection>>> {
        Box::pin(async move {
            let (stream, _) = self.socket.accept().await?;
            let connection: Box<dyn Connection> = Box::new(Stream::from(stream));
            Ok(connection)
        })
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        None
    }
}
