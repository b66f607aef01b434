//! Platforms without Unix sockets: opening the socket fails with [`SocketError::Unsupported`].

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use weft_config::InterfaceName;
use weft_config::exit;

use crate::Control;

/// A descriptor that could be passed in: there is none.
pub type Descriptor = Infallible;

/// Why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The platform has no implementation.
    #[error("weft does not serve wg(8) on this platform yet: interface {name} cannot be configured with it")]
    Unsupported {
        /// The name of the interface.
        name: InterfaceName,
    },
}

impl SocketError {
    /// Returns the exit code of a command that fails with this error.
    pub fn exit_code(&self) -> exit::Code {
        exit::Code::Failure
    }
}

/// A listening socket: there is none.
#[derive(Debug)]
pub struct Listener(Infallible);

impl Listener {
    /// Fails with [`SocketError::Unsupported`].
    pub fn open(name: &InterfaceName) -> Result<Self, SocketError> {
        Err(SocketError::Unsupported { name: name.clone() })
    }

    /// Adopts a listening socket.
    pub fn adopt(descriptor: Descriptor) -> Result<Self, SocketError> {
        match descriptor {}
    }
}

/// Does nothing and returns false: there are no sockets.
pub fn remove_dead(_: &InterfaceName) -> Result<bool, SocketError> {
    Ok(false)
}

/// A socket that is served: there is none.
#[derive(Debug)]
pub struct Server(Infallible);

impl Server {
    /// Serves a listening socket.
    #[allow(clippy::needless_pass_by_value)]
    pub fn start(
        listener: Listener,
        _control: Arc<dyn Control>,
        _on_gone: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        match listener.0 {}
    }

    /// Ends the server.
    pub fn stop(self) {
        match self.0 {}
    }
}
