//! Platforms without Unix sockets: no interface runs, and connecting fails with [`ClientError::Unsupported`].

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_config::InterfaceName;

use super::{CaptureRequest, ClientError, Received, Reload, ReloadReport};
use crate::StatusReport;

/// Returns no interfaces.
pub fn running() -> io::Result<Vec<InterfaceName>> {
    Ok(Vec::new())
}

/// Returns no interfaces.
pub fn running_in(_directory: &Path) -> io::Result<Vec<InterfaceName>> {
    running()
}

/// A connection to a running interface. There is none on this platform.
#[derive(Debug)]
pub struct Client {
    never: Infallible,
}

impl Client {
    /// Returns the path at which the socket would be.
    pub fn path_of(name: &InterfaceName) -> PathBuf {
        weft_ipc::runtime_dir::control_socket(&weft_ipc::runtime_dir::runtime_dir(), name)
    }

    /// Fails with [`ClientError::Unsupported`].
    pub fn connect(_name: &InterfaceName) -> Result<Self, ClientError> {
        Err(ClientError::Unsupported)
    }

    /// Fails with [`ClientError::Unsupported`].
    pub fn connect_in(_directory: &Path, _name: &InterfaceName) -> Result<Self, ClientError> {
        Err(ClientError::Unsupported)
    }

    pub fn name(&self) -> &InterfaceName {
        match self.never {}
    }

    /// Requests the state of the interface.
    pub fn status(&mut self) -> Result<StatusReport, ClientError> {
        match self.never {}
    }

    /// Applies a configuration file to the interface.
    pub fn reload(&mut self, _reload: &Reload) -> Result<ReloadReport, ClientError> {
        match self.never {}
    }

    /// Starts a capture.
    pub fn capture(self, _request: &CaptureRequest) -> Result<PacketStream, ClientError> {
        match self.never {}
    }

    /// Takes the interface down.
    pub fn stop(self, _patience: Duration) -> Result<(), ClientError> {
        match self.never {}
    }
}

/// The packets of a capture. There are none on this platform.
#[derive(Debug)]
pub struct PacketStream {
    never: Infallible,
}

/// Ends a capture. There is none on this platform.
#[derive(Debug)]
pub struct Stopper {
    never: Infallible,
}

impl PacketStream {
    /// Returns the bytes that came with the answer to the request.
    pub fn take_rest(&mut self) -> Vec<u8> {
        match self.never {}
    }

    /// Appends received bytes.
    pub fn read(&mut self, _bytes: &mut Vec<u8>, _patience: Duration) -> Result<Received, ClientError> {
        match self.never {}
    }

    /// Asks the daemon to end the capture.
    pub fn stop(&self) {
        match self.never {}
    }

    /// Returns a handle that ends the capture from another thread.
    pub fn stopper(&self) -> io::Result<Stopper> {
        match self.never {}
    }
}

impl Stopper {
    /// Ends the capture, as [`PacketStream::stop`].
    pub fn stop(&self) {
        match self.never {}
    }
}
