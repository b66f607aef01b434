//! Platforms without Unix sockets: there is no control socket yet.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::Manage;

/// Why the control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// This platform has no such socket yet.
    #[error("weft has no control socket on {} yet", std::env::consts::OS)]
    Unsupported,
}

impl ListenError {
    /// Returns [`io::ErrorKind::Unsupported`].
    pub fn kind(&self) -> io::ErrorKind {
        io::ErrorKind::Unsupported
    }
}

/// A control socket, which cannot exist on this platform.
#[derive(Debug)]
pub struct Server {
    never: Infallible,
}

impl Server {
    /// Fails with [`ListenError::Unsupported`].
    pub fn start(_path: &Path, manage: Arc<dyn Manage>) -> Result<Self, ListenError> {
        drop(manage);
        Err(ListenError::Unsupported)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match self.never {}
    }
}
