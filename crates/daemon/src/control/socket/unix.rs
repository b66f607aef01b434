//! The Unix socket, in the directory of its interface.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;
use weft_ipc::Source;
use weft_ipc::listener::{self, SocketFile};
pub use weft_ipc::listener::{ListenError, remove_dead};
use weft_ipc::runtime_dir;

/// Returns once a file is gone by which a daemon is found: its socket, or another one beside it.
pub(super) async fn until_one_is_gone(socket: &Path) {
    weft_ipc::watch::until_one_is_gone(socket.parent().unwrap_or(Path::new("."))).await;
}

/// A socket. Clients may connect, and wait until it is served.
pub(super) struct Listener {
    // In the order of the clean-up.
    file: File,
    socket: UnixListener,
}

/// The file of the socket, and its directory. Dropping them removes both.
struct File {
    _file: SocketFile,
    _directory: Directory,
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        runtime_dir::leave(&self.0);
    }
}

impl Listener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        let unmade =
            |source| ListenError::Io { action: "make the directory", path: directory.clone(), source };
        runtime_dir::make(&directory).map_err(unmade)?;
        runtime_dir::adopt(&directory)?;
        let (socket, file) = listener::listen(path, 0o700)?;
        Ok(Self { socket, file: File { _file: file, _directory: Directory(directory) } })
    }

    /// Accepts clients, in the context of a runtime.
    pub(super) fn accept(self) -> io::Result<Acceptor> {
        Ok(Acceptor { socket: tokio::net::UnixListener::from_std(self.socket)?, _file: self.file })
    }
}

/// A socket in a runtime. Dropping it removes its file, and the directory.
pub(super) struct Acceptor {
    // In the order of the clean-up.
    _file: File,
    socket: tokio::net::UnixListener,
}

impl Acceptor {
    pub(super) async fn next(&self) -> io::Result<(UnixStream, Source)> {
        listener::accept(&self.socket).await
    }
}
