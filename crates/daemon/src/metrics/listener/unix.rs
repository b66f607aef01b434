//! A socket in the file system.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use tokio::net::UnixStream;

use super::ListenError;
use crate::control::listener::{self, SocketFile};

/// The longest path of a socket (unix(7): 108 bytes with the one that ends it; 104 elsewhere).
const LONGEST: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// A socket in the file system, for its owner alone. Dropping it removes its file.
#[derive(Debug)]
pub(in super::super) struct LocalListener {
    socket: UnixListener,
    file: SocketFile,
}

/// The same within a runtime.
pub(in super::super) struct LocalAcceptor {
    socket: tokio::net::UnixListener,
    _file: SocketFile,
}

impl LocalListener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        let length = path.as_os_str().as_bytes().len();
        if length > LONGEST {
            return Err(ListenError::TooLong { path: path.display().to_string(), length, most: LONGEST });
        }
        let (socket, file) = listener::listen(path).map_err(|error| {
            let kind = error.kind();
            ListenError::Local(Box::new(error), kind)
        })?;
        Ok(Self { socket, file })
    }

    pub(in super::super) fn acceptor(self) -> io::Result<LocalAcceptor> {
        Ok(LocalAcceptor { socket: tokio::net::UnixListener::from_std(self.socket)?, _file: self.file })
    }
}

impl LocalAcceptor {
    pub(in super::super) async fn accept(&self) -> io::Result<UnixStream> {
        self.socket.accept().await.map(|(stream, _)| stream)
    }
}
