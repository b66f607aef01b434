//! A Unix socket that a daemon listens on: made for its owner alone, over what a dead daemon left, and removed at the
//! end if it is still ours.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::sync::Semaphore;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 16;
/// After an accept that failed, as when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Why nobody can listen there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{}: another process answers on this socket: is the interface running already?", path.display())]
    Occupied {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the name.
    #[error("{}: is not a socket; remove it, or choose another directory with WEFT_RUNTIME_DIR", path.display())]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The directory or the socket cannot be made.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl ListenError {
    /// What kind of error the operating system gave.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Occupied { .. } => io::ErrorKind::AddrInUse,
            Self::NotASocket { .. } => io::ErrorKind::AlreadyExists,
            Self::Io { source, .. } => source.kind(),
        }
    }
}

/// The name of a socket in the file system. Dropping it removes that file, unless another one stands there by now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is still there, and still this one.
    pub fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // Whoever removed it in between did what was to be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path`, which only its owner may connect to. The directory is made if it is missing, for its owner
/// alone; a socket that nobody answers on is replaced.
///
/// # Errors
/// Those of [`ListenError`].
pub fn listen(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |action| move |source| ListenError::Io { action, path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(failed("make the directory"))?;
    }
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed("make a socket"))?;
    let address = SockAddr::unix(path).map_err(failed("use this path for a socket"))?;
    socket.bind(&address).map_err(failed("bind the socket"))?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(path).map_err(failed("find the socket that was bound"))?,
    };
    // Nobody can connect before `listen`: no moment with the rights that the umask gives.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed("protect the socket"))?;
    socket.listen(BACKLOG).map_err(failed("listen on the socket"))?;
    socket.set_nonblocking(true).map_err(failed("listen on the socket"))?;
    Ok((socket.into(), file))
}

/// Removes a socket that no process listens on.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ListenError::Io { action: "look at", path: path.to_owned(), source }),
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(_) => return Err(ListenError::Occupied { path: path.to_owned() }),
        Err(source) => return Err(ListenError::Io { action: "try", path: path.to_owned(), source }),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| ListenError::Io {
            action: "remove the socket of a dead daemon",
            path: path.to_owned(),
            source,
        }),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Serves clients, at most so many at once; the others wait in the socket's queue. Never returns: drop it to end.
///
/// `serve` has to bound the time that a client takes.
pub(super) async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: tokio::net::UnixListener,
    clients: usize,
    serve: impl Fn(tokio::net::UnixStream) -> F,
) -> std::convert::Infallible {
    let free = Arc::new(Semaphore::new(clients));
    loop {
        let permit = Arc::clone(&free).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let client = serve(stream);
                tokio::spawn(async move {
                    client.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a client");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_may_connect_and_the_file_goes_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/deeper/wg0.sock");
        let (listener, file) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        UnixStream::connect(&path).unwrap();
        assert!(file.is_in_place());
        drop((listener, file));
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_daemons_socket_is_replaced_and_a_living_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wg0.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _first = listen(&path).unwrap();
        let second = listen(&path).unwrap_err();
        assert!(matches!(second, ListenError::Occupied { .. }), "{second}");
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wg0.sock");
        fs::write(&path, "precious").unwrap();
        let error = listen(&path).unwrap_err();
        assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn another_daemons_socket_at_the_same_place_survives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wg0.sock");
        let (_listener, first) = listen(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!first.is_in_place());
        let (_listener, second) = listen(&path).unwrap();
        drop(first);
        assert!(second.is_in_place());
    }

    #[test]
    fn a_path_that_is_too_long_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = listen(&directory.path().join("x".repeat(200))).unwrap_err().to_string();
        assert!(error.contains("xxxx") && error.contains("socket"), "{error}");
    }
}
