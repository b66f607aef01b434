//! A Unix socket in the file system.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use tokio::net::UnixStream;
use weft_ipc::Source;
use weft_ipc::listener::{self, SocketFile};

use super::ListenError;

/// The longest path of a Unix socket (unix(7): 108 bytes including the terminating NUL; 104 elsewhere).
const LONGEST: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// A Unix socket that only its owner may use. Dropping it removes its file.
#[derive(Debug)]
pub(in super::super) struct LocalListener {
    // In the order of the clean-up.
    /// `None` for an inherited socket: its creator removes the file.
    pub(super) file: Option<SocketFile>,
    pub(super) socket: UnixListener,
}

/// A [`LocalListener`] within a runtime.
pub(in super::super) struct LocalAcceptor {
    // In the order of the clean-up.
    _file: Option<SocketFile>,
    socket: tokio::net::UnixListener,
}

impl LocalListener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        let length = path.as_os_str().as_bytes().len();
        if length > LONGEST {
            return Err(ListenError::TooLong { path: path.display().to_string(), length, limit: LONGEST });
        }
        let (socket, file) = listener::listen(path, 0o700).map_err(|error| {
            let kind = error.kind();
            ListenError::Local(Box::new(error), kind)
        })?;
        Ok(Self { socket, file: Some(file) })
    }

    pub(in super::super) fn acceptor(self) -> io::Result<LocalAcceptor> {
        Ok(LocalAcceptor { socket: tokio::net::UnixListener::from_std(self.socket)?, _file: self.file })
    }
}

impl LocalAcceptor {
    pub(in super::super) async fn accept(&self) -> io::Result<(UnixStream, Source)> {
        listener::accept(&self.socket).await
    }
}
