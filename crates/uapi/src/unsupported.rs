//! The twin for platforms without Unix sockets: opening the socket says so.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use weft_config::InterfaceName;
use weft_config::exit;

use crate::Control;

/// A descriptor that could be handed in: there is none.
pub type Descriptor = Infallible;

/// Why there is no socket to serve.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The platform has no implementation.
    #[error("weft does not serve wg(8) on this platform yet: interface {name} cannot be configured with it")]
    Unsupported {
        /// The interface.
        name: InterfaceName,
    },
}

impl SocketError {
    /// The exit code that says so.
    pub fn exit_code(&self) -> exit::Code {
        exit::Code::Failure
    }
}

/// A listening socket: there is none.
#[derive(Debug)]
pub struct Listener(Infallible);

impl Listener {
    /// Always an error.
    pub fn open(name: &InterfaceName) -> Result<Self, SocketError> {
        Err(SocketError::Unsupported { name: name.clone() })
    }

    /// Takes over a listening socket.
    pub fn adopt(descriptor: Descriptor) -> Result<Self, SocketError> {
        match descriptor {}
    }
}

/// Nothing is left behind where there is no socket.
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
