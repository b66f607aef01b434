//! The listening socket: created where wg(8) looks for it, or passed in.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tokio::net::UnixStream;
use weft_config::InterfaceName;
use weft_config::exit;
use weft_ipc::Source;
use weft_ipc::listener::{self, ListenError, SocketFile};
use weft_ipc::watch;

use crate::SOCKET_DIRECTORY;

/// A descriptor that can be passed in.
pub type Descriptor = OwnedFd;

/// Why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket cannot be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The descriptor that was passed in cannot be used.
    #[error("the descriptor that was handed in for the UAPI is not a listening Unix socket: {0}")]
    Descriptor(#[source] io::Error),
}

impl SocketError {
    /// Returns the exit code of a command that fails with this error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Listen(error) if error.kind() == io::ErrorKind::PermissionDenied => exit::Code::Permission,
            Self::Descriptor(_) => exit::Code::Usage,
            Self::Listen(_) => exit::Code::Failure,
        }
    }
}

/// A listening socket. Clients may connect, and wait until it is served. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    // In the order of the clean-up.
    file: Option<SocketFile>,
    socket: UnixListener,
}

impl Listener {
    /// Creates the socket of an interface where wg(8) looks for it, accessible to its owner only. Replaces
    /// the socket of a dead daemon.
    ///
    /// # Errors
    /// Those of [`SocketError`]. The socket of a daemon that answers is left as it is.
    pub fn open(name: &InterfaceName) -> Result<Self, SocketError> {
        Self::open_in(Path::new(SOCKET_DIRECTORY), name)
    }

    /// Creates the socket of an interface in another directory.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_in(directory: &Path, name: &InterfaceName) -> Result<Self, SocketError> {
        // Other users can list the interfaces, as with wireguard-go.
        let (socket, file) = listener::listen(&path_in(directory, name), 0o755)?;
        Ok(Self { socket, file: Some(file) })
    }

    /// Adopts a listening socket that the parent of the daemon created. Its file is watched and removed like
    /// that of [`Self::open`], if this process can see it.
    ///
    /// # Errors
    /// [`SocketError::Descriptor`] if it is not a listening Unix socket.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, SocketError> {
        let listens = nix::sys::socket::getsockopt(&descriptor, nix::sys::socket::sockopt::AcceptConn);
        let socket = UnixListener::from(descriptor);
        let address = socket.local_addr().map_err(SocketError::Descriptor)?;
        if !listens.map_err(|errno| SocketError::Descriptor(errno.into()))? {
            return Err(SocketError::Descriptor(io::Error::other("it does not listen")));
        }
        socket.set_nonblocking(true).map_err(SocketError::Descriptor)?;
        let path = address.as_pathname().filter(|path| path.is_absolute());
        let file = path.and_then(|path| SocketFile::at(path.to_owned()).ok());
        if file.is_none() {
            tracing::debug!("the inherited socket has no file here, so its removal will not be noticed");
        }
        Ok(Self { socket, file })
    }

    pub(super) fn accept(self) -> io::Result<Acceptor> {
        Ok(Acceptor { socket: tokio::net::UnixListener::from_std(self.socket)?, file: self.file })
    }
}

/// A socket in a runtime. Dropping it removes its file.
pub(super) struct Acceptor {
    // In the order of the clean-up.
    file: Option<SocketFile>,
    socket: tokio::net::UnixListener,
}

impl Acceptor {
    pub(super) async fn next(&self) -> io::Result<(UnixStream, Source)> {
        listener::accept(&self.socket).await
    }

    /// Returns once the socket's file was removed or replaced; never if it has none here.
    pub(super) async fn gone(&self) {
        let Some(file) = &self.file else { return std::future::pending().await };
        watch::until_gone(file).await;
        tracing::info!(path = %file.path().display(), "the UAPI socket's file was removed");
    }
}

/// Removes the socket that a dead daemon of this interface left behind. Reports whether there was one.
///
/// # Errors
/// Those of [`SocketError`]. The socket of a daemon that answers is left as it is.
pub fn remove_dead(name: &InterfaceName) -> Result<bool, SocketError> {
    Ok(listener::remove_dead(&path_in(Path::new(SOCKET_DIRECTORY), name))?)
}

/// Returns the path of the socket of an interface.
pub fn path_of(name: &InterfaceName) -> Option<PathBuf> {
    Some(path_in(Path::new(SOCKET_DIRECTORY), name))
}

fn path_in(directory: &Path, name: &InterfaceName) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// Returns the index of a network interface.
pub(super) fn scope_of(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}
