//! The named pipe of an interface, where wg.exe looks for it.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use tokio::net::windows::named_pipe::NamedPipeServer;
use weft_config::InterfaceName;
use weft_config::exit;
use weft_ipc::Source;
use weft_ipc::pipe::{ListenError, Pipe, PipeListener};

/// A descriptor that could be passed in: there is none.
pub type Descriptor = Infallible;

/// Why there is no pipe to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The pipe cannot be created.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

impl SocketError {
    /// Returns the exit code of a command that fails with this error.
    pub fn exit_code(&self) -> exit::Code {
        match self {
            Self::Listen(error) if error.kind() == io::ErrorKind::PermissionDenied => exit::Code::Permission,
            Self::Listen(_) => exit::Code::Failure,
        }
    }
}

/// A pipe. Clients may connect, and wait until it is served.
#[derive(Debug)]
pub struct Listener(Pipe);

impl Listener {
    /// Creates the pipe of an interface. SYSTEM and administrators may connect, from this machine.
    ///
    /// # Errors
    /// Those of [`SocketError`].
    pub fn open(name: &InterfaceName) -> Result<Self, SocketError> {
        Ok(Self(Pipe::open(Path::new(&crate::client::pipe_of(name.as_str())))?))
    }

    /// Adopts a listening socket, which cannot exist on this system.
    ///
    /// # Errors
    /// Never.
    pub fn adopt(descriptor: Descriptor) -> Result<Self, SocketError> {
        match descriptor {}
    }

    pub(super) fn accept(self) -> io::Result<Acceptor> {
        Ok(Acceptor(self.0.accept()?))
    }
}

/// A pipe in a runtime.
pub(super) struct Acceptor(PipeListener);

impl Acceptor {
    pub(super) async fn next(&self) -> io::Result<(NamedPipeServer, Source)> {
        self.0.next().await
    }

    /// Never returns: a pipe disappears with its daemon alone.
    pub(super) async fn gone(&self) {
        std::future::pending::<()>().await;
    }
}

/// Returns false: a dead daemon leaves no pipe behind.
///
/// # Errors
/// Never.
pub fn remove_dead(_: &InterfaceName) -> Result<bool, SocketError> {
    Ok(false)
}

/// Returns `None`: a pipe has no file.
pub fn path_of(_: &InterfaceName) -> Option<std::path::PathBuf> {
    None
}

/// Returns the index of a network interface, which Windows writes as a number.
pub(super) fn scope_of(name: &str) -> Option<u32> {
    name.parse().ok()
}
