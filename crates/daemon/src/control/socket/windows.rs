//! The named pipe.

use std::io;
use std::path::Path;

use tokio::net::windows::named_pipe::NamedPipeServer;
use weft_ipc::Source;
pub use weft_ipc::pipe::ListenError;
use weft_ipc::pipe::{Pipe, PipeListener};

/// A pipe. Clients may connect, and wait until it is served.
pub(super) struct Listener(Pipe);

impl Listener {
    pub(super) fn open(path: &Path) -> Result<Self, ListenError> {
        Pipe::create(path).map(Self)
    }

    /// Accepts clients, in the context of a runtime.
    pub(super) fn accept(self) -> io::Result<Acceptor> {
        Ok(Acceptor(self.0.listen()?))
    }
}

/// A pipe in a runtime.
pub(super) struct Acceptor(PipeListener);

impl Acceptor {
    pub(super) async fn next(&self) -> io::Result<(NamedPipeServer, Source)> {
        self.0.accept().await
    }
}
